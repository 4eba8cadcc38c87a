"""A process with server and nodes that kills itself at one of its steps: a program for `test_flower_kills`.

    python -m tests.integrations.flower_steps STEP BALLOT MEMORY...

It counts steps before and after each function below. With STEP 0, it lives until all votes are confirmed.
"""

import sys
from pathlib import Path

from jlibo.federated import BallotFile
from jlibo.integrations.flower import server
from jlibo.tune import federated
from tests.integrations.federated_tasks import votes_of
from tests.integrations.flower_grid import Death, LocalGrid, answer_of


def main(step: int, ballot_path: Path, memories: list[Path]) -> None:
    """Run the server's app with nodes that answer from the memories."""
    nodes = {memory.name.encode(): answer_of(memory) for memory in memories}
    grid = LocalGrid(nodes)
    death = Death(step)
    for name in ("confirm", "publish", "new_votes"):
        death.wrap(federated, name)
    for name in ("receive", "cast", "announcement"):
        death.wrap(BallotFile, name)
    for name in ("push_messages", "pull_messages"):
        death.wrap(LocalGrid, name)
    with BallotFile.open_existing(ballot_path) as ballot:
        collector = server.Collector(grid, ballot, seconds=0.0, timeout=60.0)
        while step or any(votes_of(memory) for memory in memories):
            collector.step()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), [Path(word) for word in sys.argv[3:]])
