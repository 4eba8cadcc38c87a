"""Fixtures of the tests of the memory's command line."""

import pytest

from jlibo.tune.memory.memory import Memory
from tests.cli.memories import SPACE, fill


@pytest.fixture
def memory():
    with Memory.open(None, space=SPACE) as opened:
        yield opened


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "memory.db"
    with Memory.open(path, space=SPACE) as memory:
        fill(memory)
    return path
