"""Processes that cast votes are killed at many moments: no vote is lost and none counted twice."""

import contextlib
import os
import random
import select
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jlibo.federated import BallotFile
from tests.federated.ballots import NUM_KERNELS, make_rules, vote

ROOT = Path(__file__).parents[2]
NUM_KILLS = 20


def start(path, client, first):
    command = [sys.executable, "-m", "tests.federated.ballots", str(path), client, str(first)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "JLIBO_CACHE": "0"})


def killed_after(process, num_votes, wait_s):
    """Kill a process some time after its vote `num_votes`, and return the numbers that it acknowledged."""
    assert process.stdout is not None
    lines = b""
    deadline = time.monotonic() + 120
    while lines.count(b"\n") < num_votes:
        ready, _, _ = select.select([process.stdout], [], [], deadline - time.monotonic())
        assert ready, "the process cast no vote"
        chunk = os.read(process.stdout.fileno(), 4096)
        assert chunk, "the process ended by itself"
        lines += chunk
    time.sleep(wait_s)
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate()
    complete = (lines + rest).rpartition(b"\n")[0]
    return [int(line) for line in complete.split()]


def check(path, rules, acknowledged):
    """Check the file against the votes that were acknowledged; return the number of counted votes."""
    with BallotFile.open(path, rules) as ballot:
        num_votes = ballot.num_votes
        tasks = tasks_in(path)
        assert len(tasks) == len(set(tasks)) == num_votes
        assert {vote(number).task for number in acknowledged} <= set(tasks)
        expected = np.zeros(NUM_KERNELS, int)
        for task in tasks:
            expected[list(vote(int(task, 16)).selected)] += 1
        assert ballot.counts() == tuple(expected)
        # What a killed client sends again is there already, or counts now, but never twice.
        for number in acknowledged[-3:]:
            assert ballot.cast(client_of(number), vote(number)) == "repeated"
        assert ballot.num_votes == num_votes
    return num_votes


def tasks_in(path):
    """Return the ids of the counted votes, as any SQLite program reads them."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        return [task for (task,) in database.execute("SELECT task FROM votes")]


def client_of(number):
    return f"client {number // 10_000}"


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["none", "toeplitz"])
def test_killed_processes_lose_no_vote_and_count_none_twice(tmp_path, mechanism):
    if mechanism == "toeplitz":
        pytest.importorskip("opendp")
    path = tmp_path / "ballot.db"
    privacy = {} if mechanism == "none" else dict(mechanism=mechanism, epsilon=4.0, delta=1e-5)
    rules = make_rules(horizon=3000, max_votes=3000, **privacy)
    BallotFile.open(path, rules).close()
    chance, acknowledged, released = random.Random(0), [], []
    for _ in range(NUM_KILLS // 2):
        # Two processes at a time, each with its own votes.
        two = [start(path, f"client {one}", 10_000 * one + len(acknowledged)) for one in (1, 2)]
        for process in two:
            acknowledged += killed_after(process, chance.randint(1, 5), chance.uniform(0, 0.02))
        check(path, rules, acknowledged)
        with BallotFile.open_existing(path) as ballot:
            releases = ballot.releases()
        assert releases[: len(released)] == released  # never a second draw
        released = releases
    assert len(released) >= NUM_KILLS
