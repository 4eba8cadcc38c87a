"""The memory in several processes: killed at random moments, concurrent, forked, without disk space or
permissions.

Each test is one script in a separate process, which forks its children before any thread of jax exists.
"""

import json
import os
import tempfile
import textwrap

import pytest

from jlibo.tune.memory.memory import Memory
from jlibo.tune.space.space import Categorical, Float, SearchSpace
from tests import forked
from tests.tune.test_memory_reports import format_2

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and POSIX signals")

PREAMBLE = """
import json, os, random, signal, sqlite3, sys, time
from jlibo.tune.memory.memory import Memory, MemoryFileError, new_owner
from jlibo.tune.space import Categorical, Float, SearchSpace

SPACE = SearchSpace(alpha=Float(0, 1), lam=Float(1e-4, 1e4, log=True), kind=Categorical(["a", "b"]))
POINT = {"alpha": 0.5, "lam": 1.0, "kind": "a"}
path = sys.argv[1]

def fork(work, *arguments):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work(*arguments)
            code = 0
        finally:
            os._exit(code)
    return pid

def wait(*pids):
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * len(pids)
"""
SPACE = SearchSpace(alpha=Float(0, 1), lam=Float(1e-4, 1e4, log=True), kind=Categorical(["a", "b"]))
POINT = {"alpha": 0.5, "lam": 1.0, "kind": "a"}


def run(script, path):
    """Run a script after the preamble; return the JSON value of its last line."""
    text = PREAMBLE + textwrap.dedent(script)
    done = forked.run(["-c", text, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_killed_processes_lose_no_acknowledged_writes(tmp_path):
    """100 children, two at a time, add, claim and tell; all are killed at random moments, some on opening."""
    script = """
    import select
    BATCH = [(POINT, 1.0)] * 50

    def work(acknowledge):
        with Memory.open(path, space=SPACE) as memory:
            task, batches, owner = memory.task("iris"), memory.task("batches"), new_owner()
            while True:
                trial = memory.claim_pending(task.id, owner=owner)
                if trial is None:
                    trial = memory.add_trial(task.id, POINT, explored=False, owner=owner)
                score = random.random()
                memory.tell(trial.id, score)
                os.write(acknowledge, f"{trial.id} {score!r}\\n".encode())
                if random.random() < 0.2:
                    memory.add_finished(batches.id, BATCH)
                    os.write(acknowledge, b"batch\\n")

    def kill(pid, reader):
        # After some acknowledgements, or soon after the start; then anywhere in what the child does next.
        text = b""
        for _ in range(random.randint(0, 4)):
            if select.select([reader], [], [], 1)[0]:
                text += os.read(reader, 4096)
        time.sleep(random.choice([0, random.uniform(0, 0.01), random.uniform(0, 0.04)]))
        os.kill(pid, signal.SIGKILL)
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
        while more := os.read(reader, 4096):
            text += more
        os.close(reader)
        return text.decode().splitlines()

    random.seed(0)
    acknowledged, num_batches, num_journals, num_claimed = {}, 0, 0, 0
    for round in range(50):
        children = []
        for _ in range(2):
            reader, writer = os.pipe()
            random.seed(random.random())  # children draw numbers of their own
            children.append((fork(work, writer), reader))
            os.close(writer)
        for line in [line for child in children for line in kill(*child)]:
            if line == "batch":
                num_batches += 1
            else:
                trial_id, score = line.split()
                assert int(trial_id) not in acknowledged
                acknowledged[int(trial_id)] = float(score)
        num_journals += os.path.exists(path + "-journal")
        with Memory.open(path, space=SPACE) as memory:
            task, batches, owner = memory.task("iris"), memory.task("batches"), new_owner()
            trials = memory.trials(task.id)
            scores = {trial.id: trial.score for trial in trials}
            assert all(scores.get(id) == score for id, score in acknowledged.items())
            assert [trial.number for trial in trials] == list(range(len(trials)))
            # A batch is there as a whole or not at all; one may have come without being acknowledged.
            there, rest = divmod(len(memory.trials(batches.id)), len(BATCH))
            assert rest == 0 and there >= num_batches
            for _ in [trial for trial in trials if trial.state == "pending"]:
                claimed = memory.claim_pending(task.id, owner=owner)
                memory.release(claimed.owner)  # for the next round's children
                num_claimed += 1
            added = memory.add_trial(task.id, POINT, explored=False, owner=owner, expected_count=len(trials))
            acknowledged[added.id] = memory.tell(added.id, 0.5).score
        database = sqlite3.connect(path)
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        database.close()
    print(json.dumps([len(acknowledged), num_batches, num_journals, num_claimed]))
    """
    num_told, num_batches, num_journals, num_claimed = run(script, tmp_path / "memory.db")
    # The test was effective: many scores were told, and kills came during writes and between ask and tell.
    assert num_told > 150 and num_batches > 10
    assert num_journals > 0
    assert num_claimed > 0
    assert os.listdir(tmp_path) == ["memory.db"]


def test_killed_migrations_lose_nothing(tmp_path):
    """Children that open a file of format 2 are killed at random moments."""
    script = """
    import shutil
    from jlibo.tune.memory.schema import FORMAT_VERSION
    random.seed(0)
    old = path + ".old"

    def version(file):
        database = sqlite3.connect(file)
        (number,) = database.execute("PRAGMA user_version").fetchone()
        database.close()
        return number

    def facts(memory):
        return [(t.id, t.params, t.state, t.score, t.owner, t.claims) for t in memory.all_trials()]

    versions, num_journals, before = [], 0, None
    for _ in range(36):
        shutil.copyfile(old, path)
        pid = fork(lambda: Memory.open_existing(path))
        time.sleep(random.uniform(0, random.choice([0.01, 0.03, 0.2])))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        num_journals += os.path.exists(path + "-journal")
        versions.append(version(path))
        with Memory.open_existing(path) as memory:
            before = before or facts(memory)
            assert facts(memory) == before and len(before) == 4
            memory.report(3, 0, 0.5)
        assert version(path) == FORMAT_VERSION
        os.remove(path)
    assert set(versions) <= {2, FORMAT_VERSION}  # one transaction for all versions between
    print(json.dumps([versions.count(2), versions.count(FORMAT_VERSION), num_journals]))
    """
    format_2(tmp_path / "memory.db.old")
    num_old, num_new, num_journals = run(script, tmp_path / "memory.db")
    assert num_old > 0 and num_new > 0 and num_journals > 0  # kills came before, during and after


@pytest.mark.parametrize("names", [("iris", "iris"), ("iris", "wine")])
def test_two_processes_tell_concurrently(tmp_path, names):
    script = f"""
    def work(name, start):
        os.read(start, 1)
        with Memory.open(path, space=SPACE) as memory:
            task, owner = memory.task(name), new_owner()
            for i in range(200):
                trial, tries = None, 0
                while trial is None:  # as a tuner does: look, choose, and look again if others were faster
                    count = len(memory.trials(task.id)) if i % 10 == 0 or tries else None
                    trial = memory.add_trial(
                        task.id, POINT, explored=False, owner=owner, expected_count=count
                    )
                    tries += 1
                memory.tell(trial.id, i)

    reader, writer = os.pipe()
    children = [fork(work, name, reader) for name in {names!r}]
    os.write(writer, b"go")
    wait(*children)
    print("null")
    """
    run(script, tmp_path / "memory.db")
    with Memory.open(tmp_path / "memory.db", space=SPACE) as memory:
        tasks, trials = memory.snapshot()
        assert sorted(task.name for task in tasks) == sorted(set(names))
        assert len(trials) == 400
        assert all(trial.state == "complete" and trial.owner is None for trial in trials)
        for task in tasks:
            share = [trial for trial in trials if trial.task_id == task.id]
            assert [trial.number for trial in share] == list(range(400 // len(tasks)))
            times = 2 // len(tasks)
            assert sorted(t.score for t in share) == sorted([float(i) for i in range(200)] * times)


def test_concurrent_creation_and_claims_are_exclusive(tmp_path):
    script = """
    def work(start):
        os.read(start, 1)
        with Memory.open(path, space=SPACE) as memory:
            memory.task("iris")

    def claim(start, found):
        os.read(start, 1)
        with Memory.open(path, space=SPACE) as memory:
            owner, task = new_owner(), memory.task("iris")
            never = lambda owner, age: False  # some children end while others still claim
            while (trial := memory.claim_pending(task.id, owner=owner, is_dead_fn=never)) is not None:
                os.write(found, f"{trial.number}\\n".encode())

    start, go = os.pipe()
    children = [fork(work, start) for _ in range(6)]
    os.write(go, b"x" * 6)
    wait(*children)
    with Memory.open(path, space=SPACE) as memory:
        (task,) = memory.tasks()
        for _ in range(40):
            memory.add_trial(task.id, POINT, explored=False, owner=None)
    results, found = os.pipe()
    children = [fork(claim, start, found) for _ in range(3)]
    os.write(go, b"x" * 3)
    os.close(found)
    with open(results) as pipe:
        numbers = [int(line) for line in pipe.read().split()]
    print(json.dumps(sorted(numbers)))
    """
    assert run(script, tmp_path / "memory.db") == list(range(40))


def test_forked_process_opens_a_new_connection(tmp_path):
    """Holds also if another thread is inside a transaction during the fork."""
    script = """
    import threading
    memory = Memory.open(path, space=SPACE)
    ram = Memory.open(None, space=SPACE)
    task = memory.task("iris")
    stop = threading.Event()

    def write():
        while not stop.is_set():
            memory.add_finished(task.id, [(POINT, 1.0)] * 20)
            time.sleep(0.001)  # locks are not fair: without a pause the others may wait for long

    def child():
        memory.add_finished(task.id, [(POINT, 2.0)])
        try:
            ram.tasks()
        except MemoryFileError as error:
            assert "forked" in str(error)
        else:
            raise AssertionError
        ram.close()
        memory.close()

    thread = threading.Thread(target=write)
    thread.start()
    for _ in range(20):
        wait(fork(child))
    stop.set()
    thread.join()
    trials = memory.trials(task.id)
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert ram.tasks() == []
    print(json.dumps([trial.score for trial in trials].count(2.0)))
    """
    assert run(script, tmp_path / "memory.db") == 20


def test_full_disk_keeps_existing_content(tmp_path):
    """RLIMIT_FSIZE prevents all files of the process from growing beyond the size of the memory."""
    script = """
    import resource
    with Memory.open(path, space=SPACE) as memory:
        task = memory.task("iris")
        memory.add_finished(task.id, [(POINT, i) for i in range(100)])
        before = memory.snapshot()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(path), limits[1]))
        acknowledged = []
        try:
            while True:
                acknowledged += memory.add_finished(task.id, [(POINT, i) for i in range(10)])
        except MemoryFileError as error:
            message = str(error)
        assert memory.snapshot() == (before[0], before[1] + acknowledged)
        with Memory.open(path, space=SPACE) as again:
            assert len(again.all_trials()) == 100 + len(acknowledged)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        memory.add_finished(task.id, [(POINT, 1.0)])
    print(json.dumps({"message": message, "num": 101 + len(acknowledged)}))
    """
    path = tmp_path / "memory.db"
    found = run(script, path)
    assert str(path) in found["message"] and "nothing it held is lost" in found["message"]
    assert "full, over a quota" in found["message"]
    with Memory.open_existing(path) as memory:
        assert len(memory.all_trials()) == found["num"]


@pytest.mark.parametrize("what", ["file", "folder", "unreadable"])
def test_memory_without_write_permission_can_be_read(what):
    """Root bypasses permissions, so the script changes to another user."""
    script = f"""
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    found = {{}}
    try:
        Memory.open(path, space=SPACE)
    except MemoryFileError as error:
        found["error"] = str(error)
    if {what!r} != "unreadable":
        with Memory.open_existing(path, write=False) as memory:
            found["num"] = len(memory.all_trials())
            try:
                memory.task("wine")
            except MemoryFileError as error:
                found["later"] = str(error)
    try:
        Memory.open(os.path.join(os.path.dirname(path), "new.db"), space=SPACE)
    except MemoryFileError as error:
        found["new"] = str(error)
    print(json.dumps(found))
    """
    # Not in `tmp_path`, which another user cannot read.
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "memory.db")
        with Memory.open(path, space=SPACE) as memory:
            memory.add_finished(memory.task("iris").id, [(POINT, 1.0)])
        with open(path, "rb") as file:
            before = file.read()
        os.chmod(path, {"file": 0o444, "folder": 0o666, "unreadable": 0o000}[what])
        os.chmod(folder, 0o555)
        try:
            found = run(script, path)
        finally:
            os.chmod(folder, 0o755)
            os.chmod(path, 0o644)
        assert os.listdir(folder) == ["memory.db"]
        with open(path, "rb") as file:
            assert file.read() == before
    assert path in found["error"] and "cannot be opened for writing" in found["error"]
    assert "allow it for the file and its folder" in found["error"]
    assert "cannot be opened for writing" in found["new"]
    if what != "unreadable":
        assert found["num"] == 1
        assert "cannot be opened for writing" in found["later"]
