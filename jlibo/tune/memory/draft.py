"""A new memory gets its name when it is complete and on the disk. Internal."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jlibo.files import sync_folder
from jlibo.printable import printable
from jlibo.tune.memory.errors import MemoryFileError
from jlibo.tune.memory.owner import new_owner, owner_is_dead

_DRAFTS = ".draft~"


def check_new(target: Path) -> None:
    """Raise a `MemoryFileError` if there is something at the path of a new file."""
    if os.path.lexists(target):
        raise MemoryFileError(f"'{printable(target)}' is there already: give the path of a new file.")


@contextlib.contextmanager
def draft_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder next to the target; folders left by killed processes are removed."""
    prefix = f".{target.name}{_DRAFTS}"
    parent = target.parent
    with contextlib.suppress(OSError):
        for left in [entry for entry in os.scandir(parent) if entry.name.startswith(prefix)]:
            owner, _, _ = left.name.removeprefix(prefix).rpartition("~")
            if owner_is_dead(owner.replace("~", ":"), 0.0):
                shutil.rmtree(left.path, ignore_errors=True)
    owner = new_owner().replace(":", "~")
    with tempfile.TemporaryDirectory(dir=parent, prefix=f"{prefix}{owner}~") as folder:
        yield Path(folder)


def publish(draft: Path, target: Path) -> None:
    """Give a finished file its name, unless that name is taken by now."""
    try:
        os.link(draft, target)
    except OSError:  # the name is taken, or a file system without links
        check_new(target)
        os.rename(draft, target)
    sync_folder(target.parent)
