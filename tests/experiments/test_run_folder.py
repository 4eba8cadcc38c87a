"""The folder of a run: other files are kept, a kill leaves the old or the new run, leftovers are removed."""

import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import jlibo
from jlibo.experiments import run_folder
from jlibo.experiments.run_folder import RunFolderError, check_replaceable, clear_leftovers, write_run

ABOUT = {"experiment": "a", "seeds": 2}
posix = pytest.mark.skipif(os.name != "posix", reason="signals and permissions of POSIX")


def files_of(word: str, size: int = 10) -> dict[str, bytes]:
    return {name: f"{word} {name} ".encode() * size for name in run_folder.FILES[:4]}


def is_whole(folder: Path, word: str, size: int = 10) -> bool:
    wanted = files_of(word, size)
    return all((folder / name).read_bytes() == data for name, data in wanted.items()) and (
        set(run_folder.read_manifest(folder).files) == set(wanted)
    )


def hidden(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if entry.name.startswith(".")]


@pytest.fixture(params=["one step", "two steps"])
def steps(request, monkeypatch):
    """With the system's atomic exchange of two folders, and as on a system without it."""
    if request.param == "two steps":
        monkeypatch.setattr(run_folder, "_exchange", lambda first, second: False)
    return request.param


def test_new_run_replaces_the_old_and_keeps_other_files(tmp_path, steps):
    target = tmp_path / "run"
    assert write_run(target, files_of("old"), ABOUT) is None
    (target / "notes.txt").write_text("mine")
    (target / "more" / "deep").mkdir(parents=True)
    (target / "more" / "deep" / "notes").write_text("mine too")
    (target / "link").symlink_to(tmp_path)
    (target / "figure.pdf").unlink()
    os.chmod(target, 0o750)
    replaced = write_run(target, files_of("new"), {**ABOUT, "seeds": 3})
    assert replaced is not None and replaced.about == ABOUT
    assert is_whole(target, "new")
    assert (target / "notes.txt").read_text() == "mine"
    assert (target / "more" / "deep" / "notes").read_text() == "mine too"
    assert os.readlink(target / "link") == str(tmp_path)
    assert os.listdir(tmp_path) == ["run"]
    if os.name == "posix":
        assert stat.S_IMODE(target.stat().st_mode) == 0o750


def _notes(target):
    target.mkdir()
    (target / "notes.txt").write_text("mine")


def _fake_manifest(content):
    def make(target):
        _notes(target)
        (target / "manifest.json").write_text(content)

    return make


def _edited(target):
    write_run(target, files_of("old"), ABOUT)
    (target / "summary.json").write_text("edited by hand")


def _a_folder_in_the_way(target):
    write_run(target, files_of("old"), ABOUT)
    (target / "figure.png").unlink()
    (target / "figure.png").mkdir()


def _linked_manifest(target):
    write_run(target.with_name("other"), files_of("old"), ABOUT)
    _notes(target)
    (target / "manifest.json").symlink_to(target.with_name("other") / "manifest.json")


OURS = {"written_by": "jlibo reproduce", "format_version": 1, "about": {}}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_notes, "has 'notes.txt' and no manifest.json"),
        (lambda target: target.write_text("a file"), "is not a folder"),
        (lambda target: target.symlink_to("elsewhere"), "is a symbolic link"),
        (lambda target: (_notes(target.with_name("b")), target.symlink_to("b")), "is a symbolic link"),
        (lambda target: os.mkfifo(target), "is not a folder"),
        (_edited, "summary.json' was changed"),
        (_a_folder_in_the_way, "figure.png' was changed"),
        (_linked_manifest, "no manifest.json"),
        (_fake_manifest("{}"), "no manifest.json"),
        (_fake_manifest("[" * 100_000), "no manifest.json"),
        (_fake_manifest("9" * 5000), "no manifest.json"),
        (_fake_manifest(json.dumps({**OURS, "files": {"../notes": "0"}})), "no manifest.json"),
        (_fake_manifest(json.dumps({**OURS, "files": {"notes.txt": "0"}})), "no manifest.json"),
        (_fake_manifest(json.dumps({**OURS, "files": [1]})), "no manifest.json"),
        (_fake_manifest("\xff"), "no manifest.json"),
    ],
)
@posix
def test_folders_without_a_valid_run_are_refused_and_unchanged(make, reason, tmp_path):
    target = tmp_path / "run"
    make(target)
    before = snapshot(tmp_path)
    for attempt in (check_replaceable, lambda path: write_run(path, files_of("new"), ABOUT)):
        with pytest.raises(RunFolderError, match=reason):
            attempt(target)
        assert snapshot(tmp_path) == before


def snapshot(folder: Path) -> dict[str, object]:
    answer: dict[str, object] = {}
    for root, names, files in os.walk(folder):
        for name in names + files:
            path = Path(root) / name
            kind = path.lstat().st_mode
            content = (
                path.read_bytes() if stat.S_ISREG(kind) else os.readlink(path) if path.is_symlink() else b""
            )
            answer[str(path)] = (kind, content)
    return answer


def test_empty_folder_is_accepted(tmp_path):
    (tmp_path / "run").mkdir()
    write_run(tmp_path / "run", files_of("new"), ABOUT)
    assert is_whole(tmp_path / "run", "new")


def test_failed_write_changes_nothing(tmp_path, monkeypatch):
    target = tmp_path / "run"
    write_run(target, files_of("old"), ABOUT)
    before = snapshot(tmp_path)
    for name in ("fsync", "rename", "chmod"):
        with monkeypatch.context() as patch:
            patch.setattr(run_folder, "_exchange", lambda first, second: False)
            patch.setattr(os, name, fail)
            with pytest.raises(OSError, match="No space left"):
                write_run(target, files_of("new"), ABOUT)
        assert snapshot(tmp_path) == before, name


def fail(*_, **__):
    raise OSError(28, "No space left on device")


# --- kills --------------------------------------------------------------------------------------------------

CHILD = """
import os, signal, sys, types
from pathlib import Path

# The package without its imports: a child of this kind starts in a moment.
for name, path in (("jlibo", sys.argv[1]), ("jlibo.experiments", sys.argv[1] + "/experiments")):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [path]
from jlibo.experiments import run_folder

target, word, size = Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
files = {name: f"{word} {name} ".encode() * size for name in run_folder.FILES[:4]}
about = {"experiment": "a", "seeds": 2}
"""

KILLED_AT_CALL = (
    CHILD
    + """
last, exchange = int(sys.argv[5]), sys.argv[6] == "one step"
calls = 0

def counted(fn):
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return fn(*args, **kwargs)
    return call

for name in ("mkdir", "rename", "unlink", "rmdir", "fsync", "chmod", "open", "close", "stat", "lstat"):
    setattr(os, name, counted(getattr(os, name)))
run_folder.open = counted(open)
run_folder._exchange = counted(run_folder._exchange if exchange else lambda first, second: False)
run_folder.write_run(target, files, about)
print("done")
"""
)


def start(code: str, *arguments: object) -> subprocess.Popen:
    package = str(Path(jlibo.__file__).parent)
    command = [sys.executable, "-c", code, package, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@posix
@pytest.mark.parametrize("steps", ["one step", "two steps"])
def test_kill_at_any_call_leaves_one_complete_run_and_other_files(tmp_path, steps):
    target = tmp_path / "run"
    write_run(target, files_of("old"), ABOUT)
    (target / "notes.txt").write_text("mine")
    (target / "folder").mkdir()
    outcomes, last, done = set(), 0, False
    while not done:
        # Only every second call, because each needs a process.
        last += 2
        process = start(KILLED_AT_CALL, target, "new", 10, last, steps)
        shown, complaint = process.communicate(timeout=60)
        done = "done" in shown
        assert done or process.returncode == -signal.SIGKILL, complaint
        # With one step the run is always complete; with two, once the next run has cleared leftovers.
        if steps == "two steps":
            clear_leftovers(tmp_path)
        outcomes.add(next(word for word in ("old", "new") if is_whole(target, word)))
        clear_leftovers(tmp_path)
        assert is_whole(target, "new" if is_whole(target, "new") else "old")
        assert (target / "notes.txt").read_text() == "mine" and (target / "folder").is_dir()
        assert os.listdir(tmp_path) == ["run"]
        write_run(target, files_of("old"), ABOUT)
    assert outcomes == {"old", "new"} and last > 20


KILLED_AT_TIME = (
    CHILD
    + """
print("ready", flush=True)
while True:
    run_folder.clear_leftovers(target.parent)
    run_folder.write_run(target, files, about)
"""
)


def kill_often(tmp_path, num_kills, num_children):
    """Kill writers of one folder at random times; the folder always holds the complete run of one of them."""
    chance = random.Random(0)
    target, size, words = tmp_path / "run", 20_000, [f"word{number}" for number in range(num_children)]
    write_run(target, files_of(words[0], size), ABOUT)
    (target / "notes.txt").write_text("mine")
    for _ in range(num_kills):
        children = [start(KILLED_AT_TIME, target, word, size) for word in words]
        for child in children:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0, 0.2))
        for child in children:
            child.kill()
            complaint = child.communicate()[1]
            assert complaint == ""
        assert any(is_whole(target, word, size) for word in words)
        clear_leftovers(tmp_path)
        assert hidden(tmp_path) == [] and (target / "notes.txt").read_text() == "mine"


@posix
def test_kills_at_random_times_leave_a_complete_run(tmp_path):
    kill_often(tmp_path, num_kills=6, num_children=2)


@posix
@pytest.mark.slow
def test_kills_at_many_random_times_leave_a_complete_run(tmp_path):
    kill_often(tmp_path, num_kills=150, num_children=3)


WAITS = (
    CHILD
    + """
with run_folder._building(target) as new:
    (new / "summary.json").write_text("half")
    print(new.name, flush=True)
    sys.stdin.read()
"""
)


@posix
def test_only_leftovers_of_ended_processes_are_removed(tmp_path):
    package = str(Path(jlibo.__file__).parent)
    command = [sys.executable, "-c", WAITS, package, str(tmp_path / "run"), "new", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        clear_leftovers(tmp_path)
        write_run(tmp_path / "run", files_of("mine"), ABOUT)
        assert hidden(tmp_path) == [name]
        process.kill()
    # A folder of the user whose name has the form of a leftover.
    other = tmp_path / ".run.jlibo-new-0123456789ab"
    other.mkdir()
    (other / "thesis.tex").write_text("mine")
    (tmp_path / ".run.jlibo-old-0123456789ab").symlink_to(other)
    clear_leftovers(tmp_path)
    assert sorted(hidden(tmp_path)) == [".run.jlibo-new-0123456789ab", ".run.jlibo-old-0123456789ab"]
    assert (other / "thesis.tex").read_text() == "mine" and is_whole(tmp_path / "run", "mine")
