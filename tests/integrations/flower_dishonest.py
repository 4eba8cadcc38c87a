"""A node that sends other votes than its own, in the answer of jlibo's app."""

import os
from pathlib import Path

_SITE = """
import json, os, sys
if os.path.basename(sys.argv[0] if hasattr(sys, "argv") else "").startswith("flwr-clientapp"):
    from jlibo.integrations.flower import records
    honest = records.answer
    def dishonest(votes):
        forged = [one.encode() for one in json.loads(os.environ["FORGED_VOTES"])]
        return honest([*forged, *votes])
    records.answer = dishonest
"""


def environment(folder: Path, forged_votes: str) -> dict[str, str]:
    """Return variables with which a node answers `forged_votes` (a list in JSON) before its own votes."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_SITE)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path, "FORGED_VOTES": forged_votes}
