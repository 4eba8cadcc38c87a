"""SIGKILL of server and nodes between any two steps: no vote is lost, and none is counted twice."""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed here: `make test-federated` makes an environment")

from jlibo.federated import BallotFile
from jlibo.tune import federated
from tests.integrations.federated_tasks import add_tasks, rules, votes_of

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
NUM_KILLS = 24


def run(step, ballot, memories):
    """Run the program of `flower_steps` until it ends, and return its code."""
    command = [sys.executable, "-m", "tests.integrations.flower_steps", str(step), ballot, *memories]
    cache = {"JLIBO_CACHE": "1", "XDG_CACHE_HOME": str(ballot.parent / "cache")}  # compile once
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | cache
    return subprocess.run(command, cwd=ROOT, env=environment, timeout=120).returncode


def test_kills_between_any_two_steps_lose_and_repeat_nothing(tmp_path):
    path, memories = tmp_path / "ballot.db", [tmp_path / f"{name}.db" for name in "abc"]
    BallotFile.open(path, rules()).close()
    expected = {}
    for number in range(NUM_KILLS):
        # Votes stream: a client has finished more tasks whenever the process starts.
        client = number % 3
        if number < 18:
            add_tasks(memories[client], client, first=number, count=2)
            expected |= {vote.task: (client, vote.selected) for vote in votes_of(memories[client])}
        known = [memory for memory in memories if memory.exists()]
        # After a function and before the next one is the same moment: every second step is enough.
        assert run(2 * number + 2, path, known) == -signal.SIGKILL
        with BallotFile.open_existing(path, write=False) as ballot:
            assert ballot.num_votes == sum(ballot.votes_by_client().values()) <= len(expected)
            assert ballot.announcement().num_clients == ballot.num_votes
    assert run(0, path, memories) == 0
    assert len(expected) == 36
    with BallotFile.open_existing(path) as ballot:
        assert ballot.num_votes == 36
        assert ballot.releases()[-1].num_clients == 36
        assert sorted(ballot.votes_by_client().values()) == [12, 12, 12]
        selected = list(itertools.chain.from_iterable(indices for _, indices in expected.values()))
        assert ballot.counts() == tuple(selected.count(index) for index in range(ballot.rules.num_kernels))
        support = ballot.announcement().support
    for memory in memories:
        assert votes_of(memory) == []
        found = federated.published(memory)
        assert found is not None and found.support == support
