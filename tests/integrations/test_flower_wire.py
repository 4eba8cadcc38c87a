"""What crosses the wire between a SuperLink and a node, and the demonstration."""

import os
import re
import struct
import subprocess
import time

import pytest

pytest.importorskip("flwr", reason="Flower is not installed here: `make test-federated` makes an environment")

import jlibo
from jlibo.federated import MAX_VOTE_BYTES, BallotFile, Vote
from jlibo.integrations.flower import commands
from jlibo.integrations.flower.processes import Processes, free_port, wait_for_port
from tests.integrations.federated_tasks import add_tasks, rules, votes_of
from tests.integrations.flower_wire import Proxy, all_bytes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("flower_settings")]


def secrets_of(memory):
    """Return what must not leave a node, in the forms that it may have on a wire."""
    found = [b"private-name", b"param_", str(memory).encode(), memory.name.encode()]
    with jlibo.tune.Memory.open_existing(memory) as opened:
        trials = [trial for task in opened.tasks() for trial in opened.trials(task.id)]
    numbers = [trial.score for trial in trials] + [value for one in trials for value in one.params.values()]
    assert len(numbers) > 100
    for number in numbers:
        found += [struct.pack("<d", number), struct.pack(">d", number), f"{number:.9g}".encode()]
    # Shorter ones are there by chance: the times in Flower's messages have six digits after the point.
    return [one for one in found if len(one) > 6]


def test_indices_and_ids_cross_the_wire_and_nothing_else(tmp_path):
    """A node without TLS on 127.0.0.1, so that a proxy can read all that it sends and receives."""
    memory, port = tmp_path / "client.db", free_port()
    add_tasks(memory, 9, first=0, count=12)
    votes = {vote.task: vote for vote in votes_of(memory)}
    BallotFile.open(tmp_path / "ballot.db", rules()).close()
    home, address = tmp_path / "server", ("--host", "127.0.0.1", "--port")
    home.mkdir()
    connection = f'[superlink]\ndefault = "jlibo"\n\n[superlink.jlibo]\naddress = "127.0.0.1:{port}"\n'
    (home / "config.toml").write_text(connection + "insecure = true\n")
    with Processes(tmp_path / "logs") as processes, Proxy(port) as proxy:
        link = [commands.program("flower-superlink"), "--insecure", *address, str(port)]
        wait_for_port(port, processes.start("link", link, commands.environment(home)))
        node = [commands.program("flower-supernode"), "--insecure", *address, str(free_port())]
        node += ["--superlink", f"127.0.0.1:{proxy.port}"]
        node += ["--node-config", commands.config_text({"memory": str(memory)})]
        processes.start("node", node, commands.environment(tmp_path / "node"))
        run = commands.own_command("run", home, tmp_path / "ballot.db", "--seconds", 1.0)
        processes.start("run", run, commands.environment(home))
        end = time.monotonic() + 240
        while votes_of(memory) and time.monotonic() < end:
            time.sleep(0.2)
        processes.kill("node")
        sent, received = all_bytes(proxy.sent), all_bytes(proxy.received)
    found = [Vote.from_bytes(data) for data in re.findall(rb'\{"protocol":[^{}]*"task":"[0-9a-f]+"\}', sent)]
    assert {vote.task: vote for vote in found} == votes  # the proxy reads what was sent
    assert b"num_explore" in received and next(iter(votes)).encode() in received  # support and receipt
    for secret in secrets_of(memory):
        assert secret not in sent and secret not in received, secret
    paths = set(re.findall(rb"(?:GET|POST) (/\S*) HTTP/1.1\r\n", sent))
    assert b"/v1/fleet/push-messages" in paths
    assert all(path.startswith(b"/v1/fleet/") for path in paths)  # what a proxy must let through
    # The first answer has all votes, and Flower's ids, types and times.
    pattern = rb"POST /v1/fleet/push-(messages|object) HTTP.*?\r\ncontent-length: (\d+)\r\n"
    pushed = re.findall(pattern, sent, re.DOTALL | re.IGNORECASE)
    ends = [place for place, (kind, _) in enumerate(pushed) if kind == b"messages"] + [len(pushed)]
    first = [int(length) for _, length in pushed[ends[0] : ends[1]]]
    assert len(first) > 1 and sum(first) <= len(votes) * MAX_VOTE_BYTES, pushed


def test_demonstration(tmp_path):
    """Three tuners run while their nodes answer: the tuner's own tasks vote, and follow what is elected."""
    command = commands.own_command("demo", "--tasks", 2)
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ | COLUMNS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 votes were cast" in done.stdout and "Processes left: 0." in done.stdout
    lines = [line.split() for line in done.stdout.splitlines() if re.match(r" +\d+s +\d", line)]
    assert lines[0][1:5] == ["0", "0", "0", "0"] and lines[-1][1:5] == ["6", "2", "2", "2"]
    assert "elected anew" in done.stdout and re.search(r"log rate.*yes", done.stdout)


COLUMNS = {"COLUMNS": "120"}
