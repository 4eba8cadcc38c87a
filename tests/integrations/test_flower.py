"""The Flower integration without Flower's processes: messages, the conversations of the server, files,
commands. `make test-federated` makes an environment with Flower and runs it."""

import dataclasses
import json
import logging
import os
import re
import ssl
import stat
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed here: `make test-federated` makes an environment")

from flwr.app import ConfigRecord, MetricRecord, RecordDict

from jlibo.federated import Announcement, BallotFile, BallotRules, MessageError, Receipt, Vote, new_task_id
from jlibo.integrations.flower import certificates, client, commands, records, server
from jlibo.integrations.flower.__main__ import _parser, main
from jlibo.integrations.flower.processes import Processes, free_port, wait_for_port
from jlibo.tune import federated
from tests.integrations.federated_tasks import add_tasks, num_kernels, votes_of
from tests.integrations.flower_grid import LocalGrid, context, reply_with

ANNOUNCEMENT = Announcement(num_kernels=12, support=(2, 5), num_explore=10, num_clients=57)
RULES = BallotRules(num_kernels=12, alpha=0.3, horizon=100, num_explore=4, quorum=2, max_votes=50)
TASKS = tuple(new_task_id() for _ in range(5))


def collector(grid, ballot, *, seconds=0.0, timeout=60.0):
    return server.Collector(grid, ballot, seconds=seconds, timeout=timeout)


# --- messages -----------------------------------------------------------------------------------------------


def test_records_are_read_as_they_were_written():
    receipt = Receipt(TASKS)
    assert records.read_question(records.question(ANNOUNCEMENT, receipt)) == (ANNOUNCEMENT, receipt)
    assert records.read_question(records.question(ANNOUNCEMENT, None)) == (ANNOUNCEMENT, None)
    votes = [Vote(task, (1, 2)).to_bytes() for task in TASKS]
    assert records.read_answer(records.answer(votes)) == votes
    assert records.read_answer(records.answer([])) == []


@pytest.mark.parametrize(
    "content, message",
    [
        ({}, "should have the fields"),
        ({"votes": [], "rewards": [0.5]}, "got .'rewards', 'votes'."),
        ({"votes": [0.5]}, "list of bytes"),
        ({"votes": b"1"}, "list of bytes"),
        ({"votes": [b"1"] * 101}, "at most 100"),
    ],
)
def test_an_answer_with_anything_else_is_refused(content, message):
    with pytest.raises(MessageError, match=message):
        records.read_answer(RecordDict({"jlibo": ConfigRecord(content)}))


def test_an_answer_with_other_records_is_refused():
    for content in (
        {"jlibo": ConfigRecord({"votes": []}), "more": ConfigRecord({})},
        {"other": ConfigRecord({"votes": []})},
        {"jlibo": MetricRecord({"votes": [0.5]})},
        {},
    ):
        with pytest.raises(MessageError, match="one configuration record"):
            records.read_answer(RecordDict(content))


def test_a_question_of_another_version_is_refused():
    content = json.loads(ANNOUNCEMENT.to_bytes()) | {"protocol": 2}
    newer = RecordDict({"jlibo": ConfigRecord({"announcement": json.dumps(content).encode()})})
    with pytest.raises(MessageError, match=r"version 1 .* got 2; update jlibo"):
        records.read_question(newer)


# --- the server's conversations -----------------------------------------------------------------------------


def nodes_with(*answers):
    return {b"key %d" % number: fn for number, fn in enumerate(answers)}


def test_votes_are_counted_once_though_they_are_repeated():
    votes = [Vote(task, (number, 7)) for number, task in enumerate(TASKS)]
    always = [reply_with({"votes": [vote.to_bytes() for vote in part]}) for part in (votes[:3], votes[3:])]
    with BallotFile.open(None, RULES) as ballot:
        grid = LocalGrid(nodes_with(*always))
        talk = collector(grid, ballot)
        assert [talk.step() for _ in range(3)] == [5, 5, 5]
        assert ballot.num_votes == 5
        assert ballot.counts() == (1, 1, 1, 1, 1, 0, 0, 5, 0, 0, 0, 0)
        assert set(ballot.votes_by_client()) == {
            certificates.client_of(b"key 0"),
            certificates.client_of(b"key 1"),
        }
        questions = [records.read_question(message.content) for message in grid.sent]
    # The first two questions have no receipt; the next ones name the votes that are on the disk.
    assert [receipt for _, receipt in questions[:2]] == [None, None]
    assert [receipt for _, receipt in questions[2:4]] == [Receipt(TASKS[:3]), Receipt(TASKS[3:])]
    assert questions[0][0].support == tuple(range(12)) and questions[0][0].num_clients == 0
    assert questions[-1][0].support == (7,) and questions[-1][0].num_clients == 5


def test_lost_answers_are_asked_for_again():
    vote = Vote(TASKS[0], (1,))
    with BallotFile.open(None, RULES) as ballot:
        grid = LocalGrid(nodes_with(reply_with({"votes": [vote.to_bytes()]})))
        talk = collector(grid, ballot, timeout=0.2)
        grid.drop = lambda _: True
        assert talk.step() == 0 and talk.step() == 0
        assert len(grid.sent) == 1  # it is not asked again before the timeout
        grid.drop = lambda _: False
        time.sleep(0.25)
        assert talk.step() == 1
        assert len(grid.sent) == 2 and ballot.num_votes == 1


def test_nodes_are_asked_at_intervals_and_at_once_if_there_is_more():
    few = reply_with({"votes": [Vote(TASKS[0], (1,)).to_bytes()]})
    many = reply_with({"votes": [Vote(new_task_id(), (1,)).to_bytes() for _ in range(records.MAX_VOTES)]})
    with BallotFile.open(None, dataclasses.replace(RULES, max_votes=100)) as ballot:
        grid = LocalGrid(nodes_with(few, many))
        talk = collector(grid, ballot, seconds=3600.0)
        for _ in range(3):
            talk.step()
        assert [message.metadata.dst_node_id for message in grid.sent] == [1, 2, 2, 2]


def test_a_node_that_fails_does_not_stop_the_others(caplog):
    def broken(question):
        raise RuntimeError("the disk\nis full")

    good = reply_with({"votes": [Vote(TASKS[0], (1,)).to_bytes()]})
    bad = reply_with({"rewards": [0.5]})
    with BallotFile.open(None, RULES) as ballot, caplog.at_level(logging.WARNING):
        assert collector(LocalGrid(nodes_with(broken, bad, good)), ballot).step() == 1
        assert ballot.num_votes == 1
    texts = [record.getMessage() for record in caplog.records]
    assert any("did not answer" in text and "disk\\nis full" in text for text in texts)
    assert any("Refused the answer" in text and "rewards" in text for text in texts)


def changed(vote, **fields):
    return json.dumps(json.loads(vote.to_bytes()) | fields).encode()


REFUSED = {
    "11 indices": (Vote(new_task_id(), tuple(range(11))).to_bytes(), "at most 10 indices, but got 11"),
    "no kernel": (Vote(new_task_id(), (12,)).to_bytes(), "one of 12 kernels, but got 12"),
    "extra field": (changed(Vote(TASKS[1], (1,)), reward=0.5), "unknown field 'reward'"),
    "future protocol": (changed(Vote(TASKS[1], (1,)), protocol=2), "version 1 .* got 2; update jlibo"),
    "another client's task": (Vote(TASKS[0], (1,)).to_bytes(), "is that of another client"),
    "too long": (Vote(TASKS[1], (1,)).to_bytes() + b" " * 1024, "at most 1,024 bytes"),
    "no vote": (b"\xff", "cannot be read"),
}
"""Votes that a server refuses, and the message in its log. `TASKS[0]` is a task of another client."""


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_vote_changes_nothing_and_others_count(name, caplog):
    bad, message = REFUSED[name]
    first, second = Vote(TASKS[0], (1, 2)), Vote(TASKS[2], (3,))
    with BallotFile.open(None, RULES) as ballot, caplog.at_level(logging.WARNING):
        collector(LocalGrid(nodes_with(reply_with({"votes": [first.to_bytes()]}))), ballot).step()
        before = ballot.counts(), ballot.releases(), ballot.votes_by_client()
        other = {b"other": reply_with({"votes": [bad]})}
        collector(LocalGrid(other), ballot).step()
        assert (ballot.counts(), ballot.releases(), ballot.votes_by_client()) == before
        other = {b"other": reply_with({"votes": [bad, second.to_bytes()]})}
        collector(LocalGrid(other), ballot).step()
        assert ballot.num_votes == 2
    (text, again) = [record.getMessage() for record in caplog.records]
    assert text == again and certificates.client_of(b"other")[:8] in text
    assert re.search(message, text)


def test_a_run_needs_a_ballot_and_a_key(tmp_path):
    settings = context(1, {})
    settings.run_config = {"ballot": "", "seconds": 1.0, "timeout": 1.0}
    with pytest.raises(ValueError, match="`ballot` should be the path of a ballot"):
        server.main(LocalGrid({}), settings)
    settings.run_config["ballot"] = str(tmp_path / "none.db")
    with pytest.raises(Exception, match=r"none\.db"):
        server.main(LocalGrid({}), settings)
    with pytest.raises(ValueError, match="--enable-supernode-auth"):
        certificates.client_of(b"")


# --- a node's answer ----------------------------------------------------------------------------------------


def test_an_error_of_a_node_says_nothing_about_it(tmp_path):
    path = tmp_path / "secret-name.db"
    for config in ({}, {"memory": 3}, {"memory": str(path)}, {"memory": str(path), "reward": 1}):
        with pytest.raises(client.AnswerFailed) as caught:
            client.answer(question(), context(1, config))
        assert str(caught.value) == "The node cannot answer; its own log says why."
        assert caught.value.__cause__ is None and "secret-name" not in repr(caught.value)
    path.write_text("not a memory")
    with pytest.raises(client.AnswerFailed):
        client.answer(question(), context(1, {"memory": str(path)}))


def question():
    grid = LocalGrid(nodes_with(reply_with({"votes": []})))
    with BallotFile.open(None, RULES) as ballot:
        collector(grid, ballot).step()
    return grid.sent[0]


def test_a_node_publishes_confirms_and_votes_by_its_settings(tmp_path):
    memory = tmp_path / "client.db"
    add_tasks(memory, 0, first=0, count=3)
    announcement = Announcement(num_kernels=num_kernels(), support=(2,), num_explore=1, num_clients=9)
    config = {"memory": str(memory), "max_selected": 1, "lam_share": 0.1}
    first = ask(announcement, None, config)
    votes = [Vote.from_bytes(one) for one in records.read_answer(first.content)]
    assert len(votes) == 3 and all(len(vote.selected) == 1 for vote in votes)
    assert federated.published(memory) == announcement
    again = ask(announcement, None, config)  # an answer that was lost is given again, byte by byte
    assert records.read_answer(again.content) == records.read_answer(first.content)
    rest = ask(announcement, Receipt((votes[0].task, votes[2].task)), config)
    assert records.read_answer(rest.content) == [votes[1].to_bytes()]
    with pytest.raises(client.AnswerFailed):  # another dictionary has another number of kernels
        ask(announcement, None, config | {"sizes.interactions": False})
    with pytest.raises(client.AnswerFailed):
        ask(announcement, None, config | {"max_selected": 0})
    assert votes_of(memory) == [votes[1]]


def ask(announcement, receipt, config):
    sent = question()
    sent.content = records.question(announcement, receipt)
    return client.answer(sent, context(1, config))


# --- files and commands -------------------------------------------------------------------------------------


def handshake(made, authority, host):
    """Make one TLS connection to a server with `made`, as a client that trusts `authority`."""
    listening = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listening.load_cert_chain(made.certificate, made.key)
    outer, inner = ssl.MemoryBIO(), ssl.MemoryBIO()
    accepting = listening.wrap_bio(outer, inner, server_side=True)
    trusting = ssl.create_default_context(cafile=str(authority))
    asking = trusting.wrap_bio(inner, outer, server_hostname=host)
    for _ in range(4):
        for side in (asking, accepting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return asking.version()


def test_certificates_are_those_of_the_hosts_and_the_authority(tmp_path):
    made = certificates.make_certificates(tmp_path / "one", ["127.0.0.1", "tuning.example"])
    other = certificates.make_certificates(tmp_path / "other", ["127.0.0.1"])
    for host in ("127.0.0.1", "tuning.example"):
        assert handshake(made, made.authority, host) == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        handshake(made, other.authority, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"(?i)hostname mismatch"):
        handshake(made, made.authority, "other.example")
    if os.name == "posix":
        assert stat.S_IMODE(made.key.stat().st_mode) == 0o600
    for hosts, days in (([], 1), ("127.0.0.1", 1), (["a"], 0)):
        with pytest.raises(ValueError, match=r"`hosts`|`num_days`"):
            certificates.make_certificates(tmp_path / "bad", hosts, num_days=days)


def test_keys_are_those_of_ssh_keygen(tmp_path):
    path = certificates.make_node_key(tmp_path / "node" / "key")
    public = path.with_name("key.pub").read_text().split()
    assert public[0] == "ecdsa-sha2-nistp384"
    read = subprocess.run(["ssh-keygen", "-y", "-f", path], capture_output=True, text=True, check=True)
    assert read.stdout.split()[:2] == public
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_commands_are_private_by_default(tmp_path):
    made = certificates.Certificates(tmp_path / "a.pem", tmp_path / "s.pem", tmp_path / "s.key")
    link = commands.superlink_command(made, tmp_path / "link.db", host="127.0.0.1", port=1234)
    assert {"--enable-supernode-auth", "--disable-runtime-dependency-installation"} <= set(link)
    assert "--insecure" not in link and link[link.index("--host") + 1] == "127.0.0.1"
    node = commands.supernode_command(
        "host:1",
        made.authority,
        made.key,
        {"memory": str(tmp_path / "a b.db"), "max_selected": 5},
        runtime_port=5,
    )
    assert node[node.index("--host") + 1] == "127.0.0.1" and "--insecure" not in node
    assert node[-1] == f'memory="{tmp_path / "a b.db"}" max_selected=5'
    environment = commands.environment(tmp_path)
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0" and environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    with pytest.raises(ValueError, match="`memory` should be text without double quotes"):
        commands.config_text({"memory": 'a"b'})


def test_the_app_that_is_sent_to_nodes_has_no_code(tmp_path):
    command = [commands.program("flwr"), "build", "--app", str(commands.APP)]
    subprocess.run(command, env=commands.environment(tmp_path), cwd=tmp_path, check=True, capture_output=True)
    (built,) = tmp_path.glob("*.fab")
    with zipfile.ZipFile(built) as bundle:
        assert sorted(bundle.namelist()) == [".info/CONTENT", "pyproject.toml"]
        text = bundle.read("pyproject.toml").decode()
    assert "jlibo.integrations.flower.client:app" in text


def test_processes_end_with_all_that_they_started(tmp_path):
    grandchild = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; "
    grandchild += "time.sleep(600)'], start_new_session=True); print('ready', flush=True); time.sleep(600)"
    with Processes(tmp_path) as processes:
        for name in ("one", "two"):
            processes.start(name, [sys.executable, "-c", grandchild], dict(os.environ))
        while any(processes.log(name).read_text() != "ready\n" for name in ("one", "two")):
            time.sleep(0.05)
        numbers = processes.running()
        assert len(numbers) == 4
        assert processes.kill("one") == 2
        while len(processes.running()) > 2:
            time.sleep(0.05)
        assert not processes.running("one") and len(processes.running("two")) == 2
    assert not processes.running()
    for number in numbers:
        while is_alive(number):  # until the system has removed it
            time.sleep(0.05)


def is_alive(number):
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def test_waiting_for_a_port_ends_with_its_process():
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(RuntimeError, match="ended with code 3"):
        wait_for_port(free_port(), process)


def test_commands_of_people(tmp_path, capsys):
    folder, key = tmp_path / "server", tmp_path / "node" / "key"
    assert main(["certificates", str(folder), "--host", "127.0.0.1", "--days", "3"]) == 0
    assert main(["key", str(key)]) == 0
    text = capsys.readouterr().out
    made = certificates.Certificates(folder / "authority.pem", folder / "server.pem", folder / "server.key")
    assert all(str(path) in text for path in (*made, f"{key}.pub"))
    assert handshake(made, made.authority, "127.0.0.1") == "TLSv1.3"
    # Other working directories must not change the files that a command means.
    options = _parser().parse_args(["run", "server", "ballot.db"])
    assert (options.folder, options.ballot) == (Path.cwd() / "server", Path.cwd() / "ballot.db")
    with pytest.raises(SystemExit):
        main(["node", str(tmp_path), "--setting", "max_selected=many"])
    assert "--setting" in capsys.readouterr().err
    # A key that cannot be registered: there is no server.
    commands.write_connection(folder, f"127.0.0.1:{free_port()}", made.authority)
    assert main(["register", str(folder), f"{key}.pub"]) != 0


KEEPER = """
import os, sys
from jlibo.integrations.flower.processes import keep_running
keep_running([sys.executable, "-c", sys.argv[1]], dict(os.environ), hint="look here", pause=0.1)
"""
STARTER = """
import os, sys, time
from pathlib import Path
from jlibo.integrations.flower.__main__ import _parser, main
from jlibo.integrations.flower.processes import Processes
Processes(Path(sys.argv[1])).start("kept", [sys.executable, "-c", *sys.argv[2:]], dict(os.environ))
time.sleep(600)
"""


def test_a_process_is_started_again_until_it_is_asked_to_end(tmp_path):
    with Processes(tmp_path) as processes:
        process = processes.start(
            "kept", [sys.executable, "-c", KEEPER, "print('hello'); raise SystemExit(3)"], dict(os.environ)
        )
        while processes.log("kept").read_text().count("hello") < 3:
            time.sleep(0.05)
        process.terminate()
        assert process.wait(30) == 0
        text = processes.log("kept").read_text()
    assert "ended with code 3. It is started again in 0.1 seconds.\nlook here\nhello" in text


def test_processes_end_when_their_starter_is_killed(tmp_path):
    command = "import time; print('hello', flush=True); time.sleep(600)"
    starter = subprocess.Popen([sys.executable, "-c", STARTER, tmp_path, KEEPER, command])
    log = tmp_path / "kept.log"
    while not log.exists() or "hello" not in log.read_text():
        time.sleep(0.05)
    marked = {
        number for number in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_marked(number, tmp_path)
    }
    starter.kill()
    starter.wait()
    assert marked
    while any(is_alive(number) for number in marked):
        time.sleep(0.05)


def is_marked(number, folder):
    """Whether a process writes to a log in a folder."""
    try:
        return os.readlink(f"/proc/{number}/fd/1").startswith(str(folder))
    except OSError:
        return False
