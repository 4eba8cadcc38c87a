"""Processes that change the search space of a memory, merge, rename and delete, and are killed meanwhile.

Importing jlibo takes longer than the work of a child. Therefore one script in a separate process imports it
once and forks all children, as in `test_memory_processes.py`; the tests look at what it found.
"""

from pathlib import Path

import pytest

from tests.tune.test_memory_processes import pytestmark as pytestmark
from tests.tune.test_memory_processes import run

COMMON = f"""
import gzip, select, shutil, warnings
from pathlib import Path
from jlibo.tune.memory import file as memory_file
from jlibo.tune.memory import merged_file
from jlibo.tune.memory.memory import MemoryMismatch
from jlibo.tune.memory.merged_file import merge_files
from jlibo.tune.space import Int

OLD_FILE = {str(Path(__file__).parents[1] / "data" / "memory_format_2.db.gz")!r}
"""
COMMON += """
warnings.simplefilter("ignore")
folder = Path(path).parent
found = {}

def wider(high):
    return SearchSpace(dict(SPACE), depth=Int(1, high, default=2))

def trials_of(place):
    '''Return the name of the task and the score of all trials, and check what is written.'''
    with Memory.open_existing(place) as memory:
        names = {task.id: task.name for task in memory.tasks()}
        found = memory.all_trials()
    assert all(trial.as_written["lam"] == 1.0 for trial in found)
    return [(names[trial.task_id], trial.score) for trial in found]
"""

KILLS = """
real = memory_file.connect
COUNTED = ("BEGIN", "INSERT", "UPDATE", "DELETE", "ALTER", "COMMIT", "ROLLBACK")

def killed_at(number):
    '''Let this process kill itself before a statement that writes or begins or ends a transaction.'''
    count = 0
    def before(statement):
        nonlocal count
        count += statement.split()[0] in COUNTED
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
    def connect(*args, **options):
        database = real(*args, **options)
        database.set_trace_callback(before)
        return database
    memory_file.connect = merged_file.connect = connect

def was_killed(pid):
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status != 0

def at_statements(prepare, work, check):
    '''Kill the work before every second such statement, until it ends by itself; count the kills.'''
    num_kills = 0
    for number in range(random.randrange(1, 3), 1000, 2):
        prepare()
        def child():
            killed_at(number)
            work()
        killed = was_killed(fork(child))
        check(killed)
        if not killed:
            return num_kills
        num_kills += 1

def at_random(prepare, work, check, num=3):
    '''Kill the work at random moments, also inside of statements.'''
    begin = time.perf_counter()
    prepare()
    wait(fork(work))
    seconds = time.perf_counter() - begin
    for _ in range(num):
        prepare()
        pid = fork(work)
        time.sleep(random.uniform(0.3, 1) * seconds)
        os.kill(pid, signal.SIGKILL)
        check(was_killed(pid))

original, other = str(folder / "original.db"), str(folder / "other.db")
with Memory.open(original, space=SPACE) as memory:
    for name in ("iris", "wine"):
        memory.add_finished(memory.task(name).id, [(POINT, 1.0), (POINT, 2.0)])
with Memory.open(other, space=wider(9)) as memory:
    for name in ("wine", "beans"):
        memory.add_finished(memory.task(name).id, [({**POINT, "depth": 4}, 7.0)])
before, theirs = trials_of(original), trials_of(other)

def copied():
    Path(path).unlink(missing_ok=True)
    shutil.copy(original, path)

# For each operation: how to prepare it, the operation, and a check of what is there afterwards.

def change_space():
    with Memory.open(path, space=wider(5)) as memory:
        memory.add_finished(memory.task("wine").id, [({**POINT, "depth": 5}, 9.0)])

def check_change(killed):
    done = [*before, ("wine", 9.0)]
    assert trials_of(path) in ([before, done] if killed else [done])
    with Memory.open(path, space=SPACE) as memory:
        assert all(trial.fits for trial in memory.all_trials())
        assert memory.spaces in ([SPACE], [SPACE, wider(5)])

def old_file():
    Path(path).write_bytes(gzip.decompress(Path(OLD_FILE).read_bytes()))

def migrate():
    with Memory.open_existing(path) as memory:
        memory.with_space(SearchSpace(dict(memory.space), more=Int(1, 3, default=1)))

def check_migrated(killed):
    with Memory.open_existing(path) as memory:
        tasks, trials = memory.snapshot()
        assert [task.name for task in tasks] == ["iris", "wine \u2665"]
        assert [trial.score for trial in trials] == [0.75, 0.25, None, None, 1 / 3, -2.0]
        assert all(trial.fits for trial in trials)
        assert len(memory.spaces) in ((1, 2) if killed else (2,))

def widen():
    with Memory.open_existing(path) as memory:
        memory.widen(wider(5))

def check_widened(killed):
    assert trials_of(path) == before
    with Memory.open_existing(path) as memory:
        assert memory.space in ((SPACE, wider(5)) if killed else (wider(5),))
        assert all(trial.fits for trial in memory.all_trials())

def merge():
    with Memory.open_existing(path) as memory:
        memory.merge(other, on_conflict="rename")

merged = [*before, ("wine (2)", 7.0), ("beans", 7.0)]

def check_merged(killed):
    assert trials_of(path) in ([before, merged] if killed else [merged])
    assert trials_of(other) == theirs

def removed():
    Path(path).unlink(missing_ok=True)

def merge_new():
    merge_files(original, [other], path, on_conflict="rename")

def check_new(killed):
    assert (killed and not Path(path).exists()) or trials_of(path) == merged
    assert trials_of(original) == before and trials_of(other) == theirs

def delete():
    with Memory.open_existing(path) as memory:
        memory.delete_tasks(["iris"])

def check_deleted(killed):
    assert trials_of(path) in ([before, before[2:]] if killed else [before[2:]])

def rename():
    with Memory.open_existing(path) as memory:
        memory.rename_task("iris", "flowers")

def check_renamed(killed):
    named = [("flowers" if name == "iris" else name, score) for name, score in before]
    assert trials_of(path) in ([before, named] if killed else [named])

OPERATIONS = [
    (copied, change_space, check_change),
    (old_file, migrate, check_migrated),
    (copied, widen, check_widened),
    (copied, merge, check_merged),
    (removed, merge_new, check_new),
    (copied, delete, check_deleted),
    (copied, rename, check_renamed),
]
counts = {}
for prepare, work, check in OPERATIONS:
    counts[work.__name__] = at_statements(prepare, work, check)
    at_random(prepare, work, check)
removed()
merge_new()
left = [entry.name for entry in folder.iterdir() if "draft" in entry.name]
found["kills"] = counts, left
"""


AT_ONCE = """
path = str(folder / "at once.db")
with Memory.open(path, space=SPACE) as memory:
    memory.add_finished(memory.task("iris").id, [(POINT, 1.0), (POINT, 2.0)])
start, go = os.pipe()

def widen(number):
    os.read(start, 1)
    for high in range(3, 7):
        while True:
            with Memory.open_existing(path) as memory:
                more = {f"p{number}_{high}": Int(1, high, default=1)}
                try:
                    memory.widen(SearchSpace(dict(memory.space), **more))
                    break
                except MemoryMismatch:  # another process has changed the space since
                    pass

def change(number):
    os.read(start, 1)
    with Memory.open(path, space=wider(number)) as memory:
        task = memory.task("shared")
        for step in range(8):
            memory.add_finished(task.id, [({**POINT, "depth": number}, float(number))])
            assert memory.space == wider(number)
            depths = [trial.params["depth"] for trial in memory.trials(task.id) if trial.score == number]
            assert depths == [number] * (step + 1)

def stay(number):
    os.read(start, 1)
    with Memory.open(path, space=SPACE) as memory:
        task = memory.task("shared")
        for step in range(8):
            memory.add_finished(task.id, [(POINT, 0.0)])
            assert all(trial.fits for trial in memory.trials(task.id) if trial.score == 0)

children = [fork(work, n) for n, work in enumerate((widen, widen, change, change, stay), start=2)]
os.write(go, b"x" * 5)
wait(*children)
with Memory.open(path, space=SPACE) as memory:
    (shared,) = (task for task in memory.tasks() if task.name == "shared")
    trials = memory.trials(shared.id)
    assert [trial.number for trial in trials] == list(range(24))
    assert all(trial.fits for trial in trials)
    names = {name for space in memory.spaces for name in space}
    found["at once"] = sorted(trial.score for trial in trials), sorted(names)
"""


AT_RANDOM = """
path = str(folder / "at random.db")
other = str(folder / "beans.db")
for place, name in ((path, "iris"), (other, "beans")):
    with Memory.open(place, space=SPACE) as memory:
        memory.add_finished(memory.task(name).id, [(POINT, 1.0), (POINT, 2.0)])
SPACES = [SPACE, wider(5), SearchSpace(alpha=Float(0, 0.6), lam=SPACE["lam"], kind=Categorical(["b", "a"]))]

def work(acknowledge, number):
    chance = random.Random(number)
    while True:
        with Memory.open(path, space=chance.choice(SPACES)) as memory:
            score = chance.random()
            point = {**POINT, "depth": 3} if "depth" in memory.space else POINT
            memory.add_finished(memory.task("iris").id, [(point, score)])
            os.write(acknowledge, f"{score!r}\\n".encode())
            memory.task(f"old {number}")
            memory.delete_task(f"old {number}")
            memory.merge(other)

reader, acknowledge = os.pipe()
told = b""
for number in range(8):
    pids = [fork(work, acknowledge, 2 * number + one) for one in range(2)]
    wanted = told.count(b"\\n") + random.randrange(5)
    while told.count(b"\\n") < wanted:
        told += os.read(reader, 65536)
    for pid in pids:
        time.sleep(random.uniform(0, 0.02))
        os.kill(pid, signal.SIGKILL)
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    while select.select([reader], [], [], 0)[0]:
        told += os.read(reader, 65536)
there = trials_of(path)
lost = [score for score in told.decode().split() if ("iris", float(score)) not in there]
found["at random"] = len(told.split()), lost, [name for name, _ in there].count("beans")
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Run all scripts in one process, which imports jlibo once."""
    return run(COMMON + KILLS + AT_ONCE + AT_RANDOM, tmp_path_factory.mktemp("memories") / "memory.db")


def test_operation_of_a_killed_process_is_done_or_not_done(found):
    """Killed before every second statement that matters, from the first or the second on, and at random."""
    counts, left = found["kills"]
    assert left == []  # drafts of killed processes are removed by the next one
    assert len(counts) == 7 and min(counts.values()) >= 3 and sum(counts.values()) > 30, counts


def test_processes_change_the_space_at_once(found):
    """Two widen, two open with a space of their own, one stays with the old one; all but two write trials."""
    scores, names = found["at once"]
    assert scores == [0.0] * 8 + [4.0] * 8 + [5.0] * 8
    assert {f"p{number}_{high}" for number in (2, 3) for high in range(3, 7)} <= set(names)


def test_nothing_acknowledged_is_lost_while_spaces_change(found):
    """16 processes, two at a time, open with one of several spaces, write, delete, merge, and are killed."""
    num_told, lost, num_merged = found["at random"]
    assert num_told > 0 and lost == [] and num_merged in (0, 2)
