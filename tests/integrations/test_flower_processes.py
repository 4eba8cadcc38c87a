"""A SuperLink and SuperNodes as processes with TLS: what they elect, and what is refused."""

import contextlib
import json
import socket
import sqlite3
import time

import pytest

pytest.importorskip("flwr", reason="Flower is not installed here: `make test-federated` makes an environment")

from jlibo.federated import MAX_VOTE_BYTES, BallotFile, Vote, new_task_id
from jlibo.integrations.flower import commands
from jlibo.integrations.flower.certificates import client_of, make_certificates, make_node_key
from jlibo.integrations.flower.local import LocalFederation
from jlibo.integrations.flower.processes import free_port
from jlibo.tune import federated
from tests.integrations import flower_dishonest
from tests.integrations.federated_tasks import add_tasks, elected, num_kernels, rules, simulated, votes_of
from tests.integrations.flower_wire import Proxy, all_bytes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("flower_settings")]
NAMES = ("alpha", "beta", "gamma")
SECONDS = {"seconds": 1.0, "timeout": 20.0}


@pytest.fixture(scope="module")
def federation(flower_settings, tmp_path_factory):
    """A SuperLink, three nodes with six finished tasks each, and a run."""
    folder = tmp_path_factory.mktemp("federation")
    memories = {name: folder / f"{name}.db" for name in NAMES}
    for number, name in enumerate(NAMES):
        add_tasks(memories[name], number, first=0, count=6)
    BallotFile.open(folder / "ballot.db", rules()).close()
    with LocalFederation(folder) as made:
        made.start_link()
        for name in NAMES:
            made.start_node(name, memories[name])
        made.start_run(folder / "ballot.db", **SECONDS)
        yield made
    assert not made.processes.running()


def memory_of(federation, name):
    return federation.folder / f"{name}.db"


def ballot_of(federation):
    return BallotFile.open_existing(federation.folder / "ballot.db", write=False)


def wait_until(condition, federation, *, seconds=240):
    """Wait until a condition holds; the message of a failure has the ends of all logs."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            logs = sorted((federation.folder / "logs").glob("*.log"))
            tails = (f"== {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in logs)
            pytest.fail("\n".join(["it did not happen in time", *tails]))
        time.sleep(0.2)


def num_votes(federation):
    with ballot_of(federation) as ballot:
        return ballot.num_votes


# The tests share a federation, so that it starts once: each leaves it with all of its nodes running.


def test_three_nodes_elect_what_core_and_simulation_elect(federation):
    memories = {name: memory_of(federation, name) for name in NAMES}
    expected = elected(memories)  # votes are made once: they are what the nodes send
    assert expected.num_votes == 18
    wait_until(lambda: num_votes(federation) == 18, federation)
    with ballot_of(federation) as ballot:
        assert ballot.counts() == expected.counts()
        assert ballot.announcement() == expected.announcement()
        assert (ballot.counts(), ballot.announcement().support) == simulated(memories)
        assert 0 < len(ballot.announcement().support) < num_kernels()
        keys = {name: federation.folder / name / "key.pub" for name in NAMES}
        assert ballot.votes_by_client() == {client_of(key): 6 for key in keys.values()}
    # The nodes know what was elected, and have nothing left to send.
    wait_until(lambda: all(not votes_of(memory) for memory in memories.values()), federation)
    last = expected.announcement()
    wait_until(lambda: all(federated.published(one) == last for one in memories.values()), federation)
    assert num_votes(federation) == 18


def test_kills_of_processes_lose_and_repeat_no_vote(federation):
    """The app of a node or of the server, a node, or the SuperLink, is killed while there are votes to send.

    Nothing is started here: each command starts its process again.
    """
    names, known = iter(range(100, 200)), set()
    start = num_votes(federation)

    def more_tasks():
        for number, name in enumerate(NAMES):
            add_tasks(memory_of(federation, name), number, first=next(names), count=1)
            known.update(vote.task for vote in votes_of(memory_of(federation, name)))

    def kill(name, program):
        wait_until(lambda: federation.processes.kill(name, program), federation)

    more_tasks()
    kill("alpha", "flwr-clientapp")  # it starts for every question
    kill("beta", "flwr-clientapp")
    more_tasks()
    # The SuperLink admits the node and ends the run when there was no sign of life for a minute.
    kill("gamma", "flower-supernode")
    kill("link", "flwr-serverapp")
    wait_until(lambda: num_votes(federation) == start + 6, federation)
    more_tasks()
    kill("link", "flower-superlink")
    more_tasks()
    kill("alpha", "flwr-clientapp")
    wait_until(lambda: num_votes(federation) >= start + 12, federation)
    wait_until(lambda: not any(votes_of(memory_of(federation, name)) for name in NAMES), federation)
    with ballot_of(federation) as found:
        assert found.num_votes == start + 12 and len(known) == 12
        assert set(found.votes_by_client().values()) == {10}
    assert known <= set(tasks_in(federation))


def log_of(federation, name):
    return federation.processes.log(name).read_text(errors="replace")


def says(federation, name, texts):
    log = log_of(federation, name)
    return all(text in log for text in texts)


def tasks_in(federation):
    with contextlib.closing(sqlite3.connect(federation.folder / "ballot.db")) as database:
        return [task for (task,) in database.execute("SELECT task FROM votes")]


def state_of(federation):
    with ballot_of(federation) as ballot:
        return ballot.counts(), ballot.releases(), ballot.votes_by_client()


def test_nodes_that_are_not_admitted(federation):
    """A node whose key is not registered, and nodes that know another authority, and a stranger's server."""
    folder, before = federation.folder, state_of(federation)
    memory = folder / "stranger.db"
    add_tasks(memory, 7, first=0, count=1)
    other = make_certificates(folder / "other", ["127.0.0.1"])
    for name, authority in (("unregistered", federation.certificates.authority), ("fooled", other.authority)):
        key = make_node_key(folder / name / "key")
        if name == "fooled":
            federation.register(key)
        words = (
            "--superlink",
            federation.address,
            "--authority",
            authority,
            "--key",
            key,
            "--memory",
            memory,
        )
        command = commands.own_command("node", folder / name, *words, "--runtime-port", free_port())
        federation.processes.start(name, command, federation.environment)
    for name, texts in REJECTED.items():
        wait_until(lambda name=name, texts=texts: says(federation, name, texts), federation)
        federation.processes.kill(name)
    assert state_of(federation) == before
    assert len(votes_of(memory)) == 1


REJECTED = {
    "unregistered": ("Failed to activate SuperNode", "Is the key of this node registered with the server"),
    "fooled": ("CERTIFICATE_VERIFY_FAILED", "Is --authority the certificate of the server's authority?"),
}


def test_a_dishonest_node_changes_nothing(federation):
    """Its forged votes are refused, each with a message; its own vote, in the same answer, counts."""
    folder = federation.folder
    with ballot_of(federation) as ballot:
        before, counts = ballot.num_votes, ballot.counts()
    taken = sorted(task for task in tasks_in(federation))[0]
    vote = Vote(new_task_id(), (1,))
    forged = [
        Vote(new_task_id(), tuple(range(11))).to_bytes(),
        Vote(taken, (1,)).to_bytes(),
        json.dumps(json.loads(vote.to_bytes()) | {"reward": 0.5}).encode(),
        json.dumps(json.loads(vote.to_bytes()) | {"protocol": 2}).encode(),
    ]
    memory = folder / "dishonest.db"
    add_tasks(memory, 8, first=0, count=1)
    (own,) = votes_of(memory)
    key = make_node_key(folder / "dishonest" / "key")
    federation.register(key)
    variables = flower_dishonest.environment(folder / "forger", json.dumps([one.decode() for one in forged]))
    words = ("--superlink", federation.address, "--authority", federation.certificates.authority)
    words += ("--key", key, "--memory", memory, "--runtime-port", free_port())
    command = commands.own_command("node", folder / "dishonest", *words)
    federation.processes.start("dishonest", command, federation.environment | variables)
    wait_until(lambda: num_votes(federation) == before + 1, federation)
    refusals = (
        "at most 10 indices, but got 11",
        "is that of another client",
        "unknown field 'reward'",
        "version 1 of the protocol, but got 2; update jlibo",
    )
    wait_until(lambda: says(federation, "run", refusals), federation)
    federation.processes.kill("dishonest")
    with ballot_of(federation) as ballot:
        expected = tuple(count + (index in own.selected) for index, count in enumerate(counts))
        assert ballot.counts() == expected
        assert ballot.votes_by_client()[client_of(key.with_name("key.pub"))] == 1


def test_keys_that_are_registered_anew_are_the_same_clients(federation):
    """The SuperLink's database is lost. The ballot knows the nodes, and counts none of their votes again."""
    wait_until(lambda: federation.processes.kill("link", "flower-superlink"), federation)
    for path in (federation.folder / "server").glob("link.db*"):
        path.unlink()
    counted = set(tasks_in(federation))
    for number, name in enumerate(NAMES):
        add_tasks(memory_of(federation, name), number, first=200, count=1)
    known = {vote.task for name in NAMES for vote in votes_of(memory_of(federation, name))}
    wait_until(lambda: is_listening(federation.port), federation)
    for name in NAMES:
        federation.register(federation.folder / name / "key")
    wait_until(lambda: known <= set(tasks_in(federation)), federation)
    with ballot_of(federation) as ballot:
        assert ballot.num_votes == len(counted | known)
        votes = ballot.votes_by_client()
    assert {client_of(federation.folder / name / "key.pub") for name in NAMES} <= votes.keys()
    assert len(votes) <= len(NAMES) + 1  # and the dishonest node


def is_listening(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


def test_a_vote_is_less_than_a_kilobyte_with_tls(federation):
    """All that a node sends until its 60 votes are counted: handshakes, signatures and polling included."""
    memory, num = federation.folder / "delta.db", 60
    add_tasks(memory, 10, first=0, count=num)
    tasks = {vote.task for vote in votes_of(memory)}
    before = num_votes(federation)
    key = make_node_key(federation.folder / "delta" / "key")
    federation.register(key)
    with Proxy(federation.port) as proxy:
        words = ("--superlink", f"127.0.0.1:{proxy.port}", "--authority", federation.certificates.authority)
        words += ("--key", key, "--memory", memory, "--runtime-port", free_port())
        command = commands.own_command("node", federation.folder / "delta", *words)
        federation.processes.start("delta", command, federation.environment)
        wait_until(lambda: num_votes(federation) == before + num, federation)
        sent, received = all_bytes(proxy.sent), all_bytes(proxy.received)
        federation.processes.kill("delta")
    assert tasks <= set(tasks_in(federation))
    assert len(sent) <= num * MAX_VOTE_BYTES
    assert all(one[:2] == b"\x16\x03" for one in proxy.sent.values())  # a TLS handshake
    assert not any(task.encode() in sent + received for task in tasks)
