"""Results and configurations that the user has: `add`, `enqueue`, tables of all kinds, frames and HTML."""

import json
import math
import os
import re
import subprocess
import sys
import textwrap

import numpy as np
import pandas
import polars
import pytest

import jlibo
from jlibo.tune.memory.memory import Memory
from jlibo.tune.memory.tables import Result, read_results
from jlibo.tune.space.space import Categorical, Float, Int, SearchSpace
from tests.tune.problem import BUDGET, CONFIGS, make_tuner, play, score, teach

PIPELINE = SearchSpace(
    model=Categorical(["svc", "forest"]),
    C=Float(1e-3, 1e3, log=True, when={"model": "svc"}),
    depth=Int(1, 12, when={"model": "forest"}),
    bootstrap=Categorical([True, False, None], when={"model": "forest"}),
    layers=Categorical([(64,), (64, 64)]),
)
ROWS = [
    Result({"C": 0.5, "layers": (64,), "model": "svc"}, 0.75),
    Result({"bootstrap": True, "depth": 3, "layers": (64, 64), "model": "forest"}, None),
    Result({"bootstrap": None, "depth": 12, "layers": (64,), "model": "forest"}, -1.5),
]
CSV = """\
model,C,depth,bootstrap,layers,score
svc,0.5,,,"(64,)",0.75
forest,,3,True,"[64, 64]",

forest,,12.0,,"(64,)",-1.5
"""


def table_as(kind, tmp_path):
    columns = {
        "model": ["svc", "forest", "forest"],
        "C": [0.5, math.nan, math.nan],
        "depth": [None, 3, 12],
        "bootstrap": [None, True, None],
        "score": [0.75, math.nan, -1.5],
    }
    layers = [(64,), (64, 64), (64,)]
    if kind == "pandas":
        return pandas.DataFrame({**columns, "layers": layers})
    if kind == "pandas with NA":
        return pandas.DataFrame({**columns, "layers": layers}).convert_dtypes()
    if kind == "polars":
        return polars.DataFrame({**columns, "layers": [list(one) for one in layers]}, strict=False)
    if kind == "records":
        named = [{**one.params, "score": one.score} for one in ROWS]
        return [*named[:2], {**named[2], "depth": np.int64(12), "score": np.float32(-1.5)}]
    (tmp_path / "results.csv").write_bytes(CSV.encode("utf-8-sig"))
    return str(tmp_path / "results.csv") if kind == "csv" else tmp_path / "results.csv"


# --- tables -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pandas", "pandas with NA", "polars", "records", "csv", "path"])
def test_every_kind_of_table_gives_the_same_results(kind, tmp_path):
    found = read_results(PIPELINE, table_as(kind, tmp_path))
    assert found == ROWS
    for one in found:
        assert all(type(value) in (str, int, float, bool, tuple, type(None)) for value in one.params.values())


@pytest.mark.parametrize("library", [pandas, polars])
def test_numbers_and_choices_of_a_frame_are_converted(library):
    space = SearchSpace(n=Int(1, 9), kind=Categorical([1, 2]), flag=Categorical([True, False]), x=Float(0, 1))
    frame = library.DataFrame(
        {
            "n": np.array([1, 9], np.int32),
            "kind": np.array([1.0, 2.0]),
            "flag": np.array([True, False]),
            "x": np.array([0.25, 1], np.float32),
            "auc": np.array([1, 2], np.int8),
        }
    )
    first, second = read_results(space, frame, score="auc")
    assert first == ({"flag": True, "kind": 1, "n": 1, "x": 0.25}, 1.0, None)
    assert type(first.params["kind"]) is int and type(first.params["flag"]) is bool
    assert second.params == {"flag": False, "kind": 2, "n": 9, "x": 1.0}


def test_text_is_a_choice_only_if_it_is_written_so(tmp_path):
    path = tmp_path / "results.csv"

    def value(choices, text):
        path.write_text(f"kind,score\n{text},1\n")
        return read_results(SearchSpace(kind=Categorical(choices)), path)[0].params["kind"]

    assert value(["None", "a"], "None") == "None"
    assert value([None, "a"], "None") is None and value([None, "a"], "") is None
    assert value(["", "a"], "") == ""
    assert value([1, 2.5], "1.0") == 1 and value([1, 1.0], "1.0") == 1.0
    assert value([True, 1], "TRUE") is True and type(value([True, 1], "1")) is int
    assert value([{"a": 1}, {"a": 2}], '"{""a"": 2}"') == {"a": 2}
    with pytest.raises(ValueError, match=r"line 2: .*may be \['1', 1\]"):
        value(["1", 1], "1")
    with pytest.raises(ValueError, match=r"line 2: .*'rbf ' \(str\) \(did you mean 'rbf'\?\)"):
        value(["rbf", "linear"], "rbf ")
    # In records, text is exact.
    (found,) = read_results(SearchSpace(kind=Categorical(["1", 1])), [{"kind": "1", "score": 1}])
    assert found.params["kind"] == "1"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("alpha,score\n1,1\n", "the columns 'score', 'alpha', 'beta', but got no column 'beta'"),
        ("alpha,beta\n1,1\n", "no column 'score'"),
        ("alpha,betta,score\n1,1,1\n", r"the unknown column 'betta' \(did you mean 'beta'\?\)"),
        ("alpha,beta,gamma,score\n1,1,1,1\n", "the unknown column 'gamma'"),
        ("alpha,alpha,beta,score\n1,1,1,1\n", "the column 'alpha' twice"),
        ("alpha,beta,score\n1,1\n", "line 2: a row should have 3 cells"),
        (
            "alpha,beta,score\n1,1,1\n1,high,1\n",
            r"line 3: `params\['beta'\]` .* a number, but got 'high'",
        ),
        ("alpha,beta,score\n1,1,good\n", "line 2: `score` should be a number, or empty .* but got 'good'"),
        ("alpha,beta,score\n1,,1\n", "line 2: .*none for 'beta'"),
        ("alpha,beta,score\n2,1,1\n", r"line 2: `params\['alpha'\]` should be a number from 0 to 1"),
        ('alpha,beta,score\n"1,1,1\n', "this is not CSV"),
        ("", "the names of the columns should come first"),
        (b"alpha,beta,score\n\xff,1,1\n", "should be UTF-8"),
        (pandas.DataFrame([[1, 2]]), "the unknown column 0"),
        (pandas.DataFrame([[0.5, 1, 1, 1]], columns=["alpha", "alpha", "beta", "score"]), "'alpha' twice"),
        (pandas.DataFrame({"alpha": [0.5], "beta": [[1]], "score": [1]}), r"row 0: `params\['beta'\]`"),
        (polars.DataFrame({"alpha": [0.5], "beta": [1], "scores": [1]}), r"did you mean 'score'\?"),
        ([{"alpha": 0.5, "beta": 1, "score": 1}, {"alpha": 0.5, "beta": 1}], "record 1: .*no such key"),
        ([{"alpha": 0.5, "beta": 1, "score": "x"}], "record 0: `score` should be a number"),
        ([1, 2], "as record 0"),
        (pandas.Series([1.0]), "as record 0"),
        (polars.LazyFrame({"alpha": [0.5]}), "but got LazyFrame"),
        (3, "but got int"),
    ],
)
def test_bad_table_is_refused_and_nothing_is_added(table, message, tmp_path):
    if isinstance(table, str | bytes):
        path = tmp_path / "results.csv"
        path.write_bytes(table.encode() if isinstance(table, str) else table)
        table = path
    tuner = make_tuner()
    task = tuner.task("new")
    for add in (task.add, lambda results: tuner.add_task("other", results)):
        with pytest.raises(ValueError, match=message):
            add(table)
    assert task.trials == [] and len(tuner.tasks) == 1


def test_conditions_are_respected():
    with pytest.raises(ValueError, match=r"record 0: .*one for 'depth', which is off"):
        read_results(PIPELINE, [{**ROWS[0].params, "depth": 3, "score": 1}])
    with pytest.raises(ValueError, match=r"record 0: .*none for 'depth', which is on"):
        read_results(PIPELINE, [{"model": "forest", "bootstrap": None, "layers": (64,), "score": 1}])
    # The column of a parameter that is off everywhere may be missing, others not.
    frame = pandas.DataFrame({"model": ["svc"], "C": [1.0], "layers": ["(64,)"], "score": [0.5]})
    assert read_results(PIPELINE, frame) == [({"C": 1.0, "layers": (64,), "model": "svc"}, 0.5, None)]
    with pytest.raises(ValueError, match="no column 'model'"):
        read_results(PIPELINE, frame.drop(columns="model"))


# --- add ----------------------------------------------------------------------------------------------------


def test_added_results_are_finished_trials_that_are_learned_from(tmp_path):
    path = tmp_path / "memory.db"
    with make_tuner(memory=path) as tuner:
        teach(tuner)
        task = tuner.task("new", budget=BUDGET)
        (without,) = play(taught_task(), 1)
        best = max(CONFIGS, key=lambda params: score(params, -2.0))  # far from where past tasks were good
        assert task.add(best, score(best, -2.0)) == 1
        assert task.add(CONFIGS[0], None) == 1
        frame = pandas.DataFrame([{**params, "score": score(params, -2.0)} for params in CONFIGS[1:12]])
        assert task.add(frame) == 11
        assert task.add({**CONFIGS[12], "score": score(CONFIGS[12], -2.0)}) == 1
        assert task.best.params == best and [trial.score is None for trial in task.trials].index(True) == 1
        assert not any(trial.explored for trial in task.trials)
        assert task._trials().trials.is_told.sum() == 13
        (asked,) = play(task, 1)
        assert score(asked, -2.0) > 0.9 > score(without, -2.0)
    with make_tuner(memory=path) as again:
        assert [trial.params for trial in again.task("new").trials][:2] == [best, CONFIGS[0]]


def taught_task():
    """Return a new task after the same past."""
    tuner = make_tuner()
    teach(tuner)
    return tuner.task("new", budget=BUDGET)


def test_adding_again_changes_nothing():
    task = make_tuner().task("new", budget=BUDGET)
    records = [{**params, "score": 0.5} for params in (CONFIGS[0], CONFIGS[1], CONFIGS[1])]
    assert task.add(records) == 3  # a measurement may be repeated within a table
    assert task.add(records) == 0
    assert task.add([*records, {**CONFIGS[1], "score": 0.75}]) == 1
    assert [trial.score for trial in task.trials] == [0.5, 0.5, 0.5, 0.75]
    with pytest.raises(ValueError, match="`score` should be the name of a column"):
        task.add(records, 0.5)
    with pytest.raises(ValueError, match="the name of a column that is not a parameter"):
        task.add(records, "alpha")
    with pytest.raises(ValueError, match="`score` should be a number"):
        task.add(CONFIGS[0], [1.0])
    with pytest.raises(FileNotFoundError):
        task.add("there-is-no-such-file.csv")


def test_add_task_takes_tables_and_keeps_its_lists(tmp_path):
    tuner = jlibo.Tuner(PIPELINE)
    tuner.add_task("frame", table_as("pandas", tmp_path))
    tuner.add_task("csv", table_as("path", tmp_path))
    tuner.add_task("lists", [one.params for one in ROWS], [one.score for one in ROWS])
    configs = table_as("polars", tmp_path).drop("score")
    tuner.add_task("frame and scores", configs, [one.score for one in ROWS])
    renamed = table_as("pandas", tmp_path).rename(columns={"score": "auc"})
    tuner.add_task("named", renamed, score="auc")
    for record in tuner.memory.tasks():
        found = [(trial.params, trial.score) for trial in tuner.memory.trials(record.id)]
        assert found == [one[:2] for one in ROWS] and record.source == "added"
    with pytest.raises(ValueError, match="not in the memory yet"):
        tuner.add_task("csv", table_as("csv", tmp_path))
    with pytest.raises(ValueError, match="one for each of the 3 configs"):
        tuner.add_task("short", configs, [1.0])


KILLED = """
    import itertools, os, sys
    from jlibo.tune import Float, Memory, SearchSpace
    from jlibo.tune.memory import finished

    space = SearchSpace(x=Float(0, 1))
    with Memory.open(sys.argv[1], space=space) as memory:
        task = memory.task("long")
        for number in itertools.count():
            pairs = [({"x": row / 400}, float(number)) for row in range(400)]
            finished.add_results(memory, task.id, pairs)
            finished.add_task(memory, f"task {number}", pairs)
            os.write(1, f"{number}\\n".encode())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX signals")
def test_killed_while_adding(tmp_path):
    """Every acknowledged row is there, and what was cut off is there as a whole or not at all."""
    path = str(tmp_path / "memory.db")
    rng = np.random.default_rng(0)
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "NPROC": "4"}
    command = [sys.executable, "-c", textwrap.dedent(KILLED), path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        acknowledged = [int(process.stdout.readline()) for _ in range(3)]
        try:
            process.wait(timeout=rng.uniform(0, 0.05))
        except subprocess.TimeoutExpired:
            process.kill()
        acknowledged += [int(line) for line in process.stdout.read().splitlines()]
    assert process.returncode == -9
    with Memory.open_existing(path) as memory:
        by_name = {task.name: [trial.score for trial in memory.trials(task.id)] for task in memory.tasks()}
    long = by_name.pop("long")
    assert all(len(scores) == 400 for scores in by_name.values())
    assert {f"task {number}" for number in acknowledged} <= set(by_name)
    assert all(long.count(float(number)) == 400 for number in acknowledged)
    assert len(long) % 400 == 0 and len(long) // 400 - len(acknowledged) in (0, 1)


# --- enqueue ------------------------------------------------------------------------------------------------


def test_enqueued_configurations_come_first_in_any_process(tmp_path):
    path = tmp_path / "memory.db"
    with make_tuner(memory=path) as tuner:
        teach(tuner)
        task = tuner.task("new", budget=4)
        assert [task.enqueue(params) for params in CONFIGS[5:8]] == [True] * 3
        assert task.trials == [] and task.ask().params == CONFIGS[5]
        with make_tuner(memory=path) as other:
            second = other.task("new").ask()
            assert second.params == CONFIGS[6] and not second.explored and second.number == 1
            other.task("new").tell(second, 0.5)
        asked = []
        for trial in task:
            asked.append(trial.params)
            task.tell(trial, score(trial.params))
        assert asked[0] == CONFIGS[7] and len(asked) == 2  # the queue counts towards the budget
        assert asked[1] not in CONFIGS[5:8]


def test_a_configuration_is_enqueued_once():
    task = make_tuner().task("new", budget=BUDGET)
    assert task.enqueue(CONFIGS[0]) and not task.enqueue(CONFIGS[0])
    assert not task.enqueue(CONFIGS[0], repeat=True)  # it is still to come
    trial = task.ask()
    assert not task.enqueue(CONFIGS[0])  # somebody works on it
    task.tell(trial, 0.5)
    assert not task.enqueue(CONFIGS[0])
    task.add(CONFIGS[1], None)
    assert not task.enqueue(CONFIGS[1])  # it has failed
    assert task.enqueue(CONFIGS[0], repeat=True)
    assert task.ask().params == CONFIGS[0]
    # A configuration in the queue whose result is added is not tried any more.
    assert task.enqueue(CONFIGS[2]) and task.add(CONFIGS[2], 0.25) == 1
    assert [trial.score for trial in task.trials] == [0.5, None, 0.25]
    assert task._claim() is None


def test_enqueued_configuration_must_be_one_that_could_be_suggested():
    task = make_tuner(constraint=lambda params: params["alpha"] < 0.5).task("new")
    assert task.enqueue({"alpha": 0.25, "beta": 1})
    with pytest.raises(ValueError, match="satisfies the constraint"):
        task.enqueue({"alpha": 0.75, "beta": 1})
    with pytest.raises(ValueError, match=r"params\['alpha'\]"):
        task.enqueue({"alpha": 2, "beta": 1})
    with pytest.raises(ValueError, match="none for 'beta'"):
        task.enqueue({"alpha": 0.25})
    listed = make_tuner(candidates=CONFIGS).task("new")
    assert listed.enqueue(CONFIGS[3])
    with pytest.raises(ValueError, match="one of the `candidates`"):
        listed.enqueue({"alpha": 0.25, "beta": 1})


# --- looking ------------------------------------------------------------------------------------------------


def test_tasks_lists_counts_and_the_best(tmp_path):
    tuner = jlibo.Tuner(PIPELINE, maximise=False)
    assert tuner.tasks == [] and len(tuner.to_dataframe()) == 0
    tuner.add_task("old", table_as("csv", tmp_path))
    tuner.task("new", budget=7).enqueue(ROWS[0].params)
    old, new = tuner.tasks
    assert (old.name, old.num_complete, old.num_failed, old.num_pending) == ("old", 2, 1, 0)
    assert (old.source, old.best_score, old.best_params) == ("added", -1.5, ROWS[2].params)
    assert (new.name, new.budget, new.num_pending, new.best_score, new.best_params) == (
        "new",
        7,
        1,
        None,
        None,
    )


def test_frames_can_be_read_again(tmp_path):
    tuner = jlibo.Tuner(PIPELINE)
    tuner.add_task("old", table_as("csv", tmp_path))
    task = tuner.task("new", budget=7)
    task.add(table_as("csv", tmp_path))
    task.enqueue({**ROWS[0].params, "C": 2.0})
    frame = task.to_dataframe()
    assert list(frame) == ["number", *PIPELINE, "score", "state", "explored", "error"]
    assert frame["state"].tolist() == ["complete", "failed", "complete", "pending"]
    assert frame["C"].isna().tolist() == [False, True, True, False] and frame["depth"].dtype == "Int64"
    assert read_results(PIPELINE, frame) == ROWS  # the pending trial is skipped
    frame.to_csv(tmp_path / "again.csv", index=False)
    assert read_results(PIPELINE, tmp_path / "again.csv") == ROWS
    both = tuner.to_dataframe(score="auc")
    assert list(both)[:2] == ["task", "number"] and "auc" in both
    assert both["task"].tolist() == ["old"] * 3 + ["new"] * 4
    named = jlibo.Tuner(SearchSpace(score=Float(0, 1), state=Float(0, 1)))
    named.add_task("one", [{"score": 0.5, "state": 0.25, "auc": 1}], score="auc")
    with pytest.raises(ValueError, match="not a parameter"):
        named.to_dataframe()
    assert named.to_dataframe("auc").to_dict("list") == {
        "task": ["one"],
        "number": [0],
        "score": [0.5],
        "state": [0.25],
        "auc": [1.0],
        "explored": [False],
        "error": [None],
    }


def test_frames_need_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    tuner = make_tuner()
    for look in (tuner.to_dataframe, tuner.task("new").to_dataframe):
        with pytest.raises(ImportError, match=re.escape("pip install 'jlibo[pandas]'")):
            look()
    assert tuner.task("new").add([{**CONFIGS[0], "score": 1.0}]) == 1  # records do not


def test_html_is_escaped():
    evil = "<script>alert('\"&\x1b')</script>"
    space = SearchSpace({evil: Categorical([evil, "b"]), "x": Float(0, 1, when={evil: "b"})})
    tuner = jlibo.Tuner(space)
    task = tuner.task(evil, budget=3)
    task.add({evil: evil}, 0.5)
    task.add({evil: "b", "x": 0.25}, 1.0)
    for number in range(25):
        tuner.memory.task(f"task {number}")
    for shown in (space, tuner, task):
        html = shown._repr_html_()
        assert html.startswith("<table>") and html.endswith("</table>")
        assert "<script" not in html and "\x1b" not in html
        tags = set(re.findall(r"</?([a-z]+)", html))
        assert tags == {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert "&lt;script&gt;alert(" in task._repr_html_() and "2 of 3 trials done" in task._repr_html_()
    assert "6 earlier tasks are not shown" in tuner._repr_html_()
    assert json.loads(json.dumps(space._repr_html_())) == space._repr_html_()
