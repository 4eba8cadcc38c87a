"""Tables: the shipped table, the three readers on small files, and environments made from tables."""

import hashlib
import io
import json
from importlib import resources

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jlibo import GPUCB, Cosine, MetaKGL, TableEnv, run_lifelong
from jlibo.tables import Table, load_table, read_csv, read_hpob, read_random_bot
from jlibo.tables.table import read_npz

KEY = jax.random.key(0)
COLUMNS = dict(task="set", params=("alpha", "lambda"), metrics=("auc", "loss"), log=("lambda",))
GRID = """set,alpha,note,lambda,auc,loss
iris,0,a,1,0.5,9
iris,0.5,b,10,0.75,8
wine,0.5,c,10,0.25,7

wine,0,d,1,,6
"""
RANDOM_BOT = """"","data_id","alpha","lambda","auc","accuracy","brier","runtime","scimark"
"1",3,0.25,0.125,0.9,0.8,0.11,1.5,NA
"2",3,0.75,8,0.7,0.6,0.21,1.5,NA
"3",31,1,2,0.6,0.7,0.31,0.1,NA
"4",3,0,1,NA,0.5,0.41,0.1,NA
"5",31,0.5,1,0.65,0.75,0.51,0.1,NA
"""
HPOB = {
    "5860": {
        "3": {"X": [[0.0, 1.0], [0.5, 0.25], [1.0, 0.0]], "y": [[0.1], [0.9], [0.3]]},
        "31": {"X": [[0.25, 0.5], [0.75, 0.75]], "y": [[0.6], [0.2]]},
    },
    "4796": {"3": {"X": [[0.1], [0.2]], "y": [[1], [0]]}, "9": {"X": [[0.2], [0.1]], "y": [[0.3], [0.4]]}},
}


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "runs.csv"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write


def env_task(env, row):
    return env.task(jnp.asarray(row), key=KEY)


# --- the shipped table ---


def test_glmnet():
    table = load_table("glmnet")
    assert table.num_tasks >= 38 and len(set(table.tasks)) == table.num_tasks
    assert table.shared and table.params.shape == (21 * 37, 2)
    assert table.param_names == ("alpha", "ln lambda")  # as named by the readers
    alpha, log_lambda = (np.unique(column) for column in table.params.T)
    assert (len(alpha), alpha[0], alpha[-1]) == (21, 0, 1)
    assert (len(log_lambda), log_lambda[0], log_lambda[-1]) == (37, -9, 9)
    assert set(table.metrics) == {"auc", "accuracy", "logloss"}
    for name, values in table.metrics.items():
        assert values.shape == (table.num_tasks, 777) and np.isfinite(values).all() and (values >= 0).all()
        assert name == "logloss" or (values <= 1).all()
    assert table.present.all() and table.num_missing == 0
    with pytest.raises(ValueError, match="read-only"):
        table.params[0] = 0


def test_glmnet_matches_its_provenance():
    folder = resources.files("jlibo").joinpath("data")
    provenance = json.loads(folder.joinpath("glmnet.provenance.json").read_text())
    assert hashlib.sha256(folder.joinpath("glmnet.npz").read_bytes()).hexdigest() == provenance["sha256"]
    assert [task["name"] for task in provenance["tasks"]] == list(load_table("glmnet").tasks)


def test_unknown_table_suggests_the_nearest_name():
    with pytest.raises(ValueError, match=r"`name` should be one of 'glmnet'.*'glmet'.*did you mean 'glmnet'"):
        load_table("glmet")
    with pytest.raises(ValueError, match=r"one of 'glmnet', but got '\.\./secret'\.$"):
        load_table("../secret")


@pytest.mark.parametrize("header", [dict(format=2), {}])
def test_other_formats_are_refused(header):
    stream = io.BytesIO()
    np.savez(stream, **header, tasks=["a"])
    stream.seek(0)
    with pytest.raises(ValueError, match=r"new\.npz: .* reads table format 1, but got (2|none)"):
        read_npz(stream, "new.npz")


def test_arrays_of_a_table_must_have_matching_shapes():
    with pytest.raises(ValueError, match=r"`metrics\['auc'\]` should be an array of shape \[2, 3\]"):
        Table(("a", "b"), ("x",), np.zeros((3, 1)), {"auc": np.zeros((2, 4))})
    with pytest.raises(ValueError, match=r"`params` should be an array of shape \[2, g, 1\]"):
        Table(("a", "b"), ("x",), np.zeros((1, 3, 1)), {"auc": np.zeros((2, 3))})


# --- CSV ---


def test_csv_with_a_shared_grid(write):
    """The second task lists the configurations in another order, and lacks one AUC."""
    table = read_csv(write(GRID), **COLUMNS)
    assert table.tasks == ("iris", "wine") and table.param_names == ("alpha", "ln lambda") and table.shared
    np.testing.assert_allclose(table.params, [[0, 0], [0.5, np.log(10)]])
    np.testing.assert_array_equal(table.metrics["auc"], [[0.5, 0.75], [np.nan, 0.25]])
    np.testing.assert_array_equal(table.metrics["loss"], [[9, 8], [6, 7]])
    assert table.present.all() and table.num_missing == 1
    alone = read_csv(write(GRID + "wine,1,e,1,0.5,\n"), **{**COLUMNS, "metrics": "auc"})
    np.testing.assert_array_equal(alone.present, [[True, True, False], [True, False, True]])
    assert not alone.shared and alone.num_missing == 1


def test_csv_default_columns(write):
    content = "\ufefftask,x,y,score\na,1,2,0.5\na,3,4,nan\na,5,6,0.25\nb,1,2,1\nb,3,4,2\nb,5,6,3\n"
    table = read_csv(write(content))
    assert table.param_names == ("x", "y") and list(table.metrics) == ["score"]
    np.testing.assert_array_equal(table.metric(), [[0.5, np.nan, 0.25], [1, 2, 3]])
    env = TableEnv.from_csv(write(content))
    np.testing.assert_allclose(env.candidates, [[0, 0], [0.5, 0.5], [1, 1]])
    np.testing.assert_array_equal(env.available, [[True, False, True], [True, True, True]])


@pytest.mark.parametrize(
    "old, new, message",
    [
        (
            "auc,",
            "area,",
            r"line 1: there is no column 'auc'; there are 'set', 'alpha', 'note', 'lambda', 'area'",
        ),
        ("note", "auc", r"line 1: there is more than one column 'auc'"),
        ("0.75", "high", r"line 3: column 'auc' should be a finite number, but got 'high'"),
        ("0.75", "inf", r"line 3: column 'auc' should be a finite number, but got 'inf'"),
        ("0.5,c", "nan,c", r"line 4: column 'alpha' should be a finite number, but got 'nan'"),
        ("0.5,c", ",c", r"line 4: column 'alpha' should be a finite number, but got ''"),
        ("d,1,", "d,0,", r"line 6: column 'lambda' should be above 0 for its logarithm, but got '0'"),
        (
            "wine,0,d,1,",
            "wine,0.5,d,1e1,",
            r"line 6: task 'wine' has this configuration at line 4 too: alpha = 0.5",
        ),
        ("wine,0,", "beer,0,", r"line 4: task 'wine' has 1 row\(s\) with a known metric"),
        ("wine,0,d,1,,6\n", "wine,0,d,1,,\n", r"line 4: task 'wine' has 1 row\(s\) with a known metric"),
        ("wine,0,", ",0,", r"line 6: the task has no name"),
        ("wine,0,d,1,,6", "wine,0,d,1", r"line 6: 4 cells, but the header has 6"),
    ],
)
def test_csv_errors_name_file_and_line(write, old, new, message):
    assert GRID.count(old) == 1
    with pytest.raises(ValueError, match=r"runs\.csv, " + message):
        read_csv(write(GRID.replace(old, new)), **COLUMNS)


@pytest.mark.parametrize(
    "content, columns, message",
    [
        ("", COLUMNS, "line 1: the file is empty"),
        ("\n\n", COLUMNS, "line 1: the file is empty"),
        (GRID.splitlines()[0], COLUMNS, "there are no rows"),
        (
            GRID,
            {**COLUMNS, "log": "lam"},
            "line 1: `log` names 'lam', but the parameters are 'alpha', 'lambda'",
        ),
        (GRID, {**COLUMNS, "metrics": ("alpha",)}, "line 1: column 'alpha' is asked for more than once"),
        (
            "task,score\na,1\na,2\n",
            {},
            "line 1: a table needs a column for the task, a parameter and a metric",
        ),
    ],
)
def test_csv_errors_of_the_whole_file(write, content, columns, message):
    with pytest.raises(ValueError, match=r"runs\.csv.*" + message):
        read_csv(write(content), **columns)


# --- the random bot ---


def test_random_bot(write):
    table = read_random_bot(write(RANDOM_BOT))
    assert table.tasks == ("3", "31") and table.param_names == ("alpha", "ln lambda")
    ln2 = np.log(2)
    np.testing.assert_allclose(
        table.params,
        [[[0.25, -3 * ln2], [0.75, 3 * ln2], [0, 0]], [[1, ln2], [0.5, 0], [np.nan, np.nan]]],
        atol=1e-15,
    )
    np.testing.assert_array_equal(table.metrics["auc"], [[0.9, 0.7, np.nan], [0.6, 0.65, np.nan]])
    np.testing.assert_array_equal(table.metrics["brier"], [[0.11, 0.21, 0.41], [0.31, 0.51, np.nan]])
    np.testing.assert_array_equal(table.present, [[True, True, True], [True, True, False]])
    assert table.num_missing == 1  # the NA, not the padding
    one = read_random_bot(write(RANDOM_BOT.replace('"brier"', '"other"')), metrics="auc")
    assert list(one.metrics) == ["auc"] and one.present.sum() == 4


def test_random_bot_errors(write):
    with pytest.raises(
        ValueError, match=r"runs\.csv, line 1: there is no column 'brier'; there are '', 'data_id'"
    ):
        read_random_bot(write(RANDOM_BOT.replace('"brier"', '"other"')))
    with pytest.raises(ValueError, match=r"runs\.csv, line 3: column 'lambda' should be above 0"):
        read_random_bot(write(RANDOM_BOT.replace("0.75,8", "0.75,-8")))


# --- HPO-B ---


def test_hpob(write):
    table = read_hpob(write(HPOB), "5860")
    assert table.tasks == ("3", "31") and table.param_names == ("x0", "x1") and not table.shared
    np.testing.assert_array_equal(table.params[0], HPOB["5860"]["3"]["X"])
    np.testing.assert_array_equal(table.params[1], [[0.25, 0.5], [0.75, 0.75], [np.nan, np.nan]])
    np.testing.assert_array_equal(table.metric("y"), [[0.1, 0.9, 0.3], [0.6, 0.2, np.nan]])
    shared = read_hpob(write(HPOB), 4796, param_names=["depth"])
    assert shared.shared and shared.param_names == ("depth",)
    np.testing.assert_array_equal(shared.metric(), [[1, 0], [0.4, 0.3]])


@pytest.mark.parametrize(
    "points, values, message",
    [
        ([[0.1], [0.1]], [[1], [2]], r"row 1: task '3' has this configuration at .*row 0 too: x0 = 0.1"),
        ([[0.1]], [[1]], r"row 0: task '3' has 1 row\(s\)"),
        ([[0.1], [0.2]], [[1], [None]], r"row 0: task '3' has 1 row\(s\)"),
        ([[0.1], [0.2]], [[1]], '"X" has 2 rows, but "y" has 1'),
        ([[0.1], [0.2]], [1, 2], r'row 0: "y" should be a list of one number, but got 1'),
        ([[0.1], [0.2]], [[1], ["a"]], r'row 1: "y" should be a list of one number'),
        ([[0.1], ["b"]], [[1], [2]], r"""row 1: "X" should be a list of finite numbers, but got \['b'\]"""),
        ([[0.1], [0.2, 0.3]], [[1], [2]], "row 1: 2 parameters, but the first row has 1"),
        ([], [], "there are no rows"),
        (None, [], 'the lists "X" and "y" were expected'),
    ],
)
def test_hpob_errors_name_the_location(write, points, values, message):
    with pytest.raises(ValueError, match=r"runs\.csv, search space '7', data set '3'.*" + message):
        read_hpob(write({"7": {"3": {"X": points, "y": values}}}), "7")


def test_hpob_errors_of_the_whole_file(write):
    with pytest.raises(
        ValueError, match=r"runs\.csv: there is no search space '1'; there are '5860', '4796'"
    ):
        read_hpob(write(HPOB), "1")
    with pytest.raises(ValueError, match=r"runs\.csv, line 2: this is no JSON"):
        read_hpob(write('{"1":\n{]}'), "1")
    with pytest.raises(ValueError, match="a JSON object"):
        read_hpob(write([1]), "1")
    with pytest.raises(ValueError, match="an object with a key for each data set"):
        read_hpob(write({"1": {}}), "1")
    with pytest.raises(ValueError, match="1 `param_names` for 2 parameters"):
        read_hpob(write(HPOB), "5860", param_names=["depth"])


# --- environments ---


def test_env_of_a_shared_table():
    table = load_table("glmnet")
    env = TableEnv.from_table(table, metric="auc", noise_std=0.1)
    assert env.num_tasks == table.num_tasks and env.own_candidates is None and float(env.noise_std) == 0.1
    np.testing.assert_allclose(
        env.candidates, np.stack([table.params[:, 0], table.params[:, 1] / 18 + 0.5], 1), atol=1e-7
    )
    np.testing.assert_allclose(env.values, table.metrics["auc"], rtol=1e-6)
    loss = TableEnv.from_table(table, metric="logloss", maximise=False, scale_to_unit=False)
    np.testing.assert_allclose(loss.values, -table.metrics["logloss"], rtol=1e-6)
    np.testing.assert_allclose(loss.candidates, table.params, rtol=1e-6)


def test_env_of_a_table_with_configurations_per_task(write):
    table = read_random_bot(write(RANDOM_BOT))
    env = TableEnv.from_table(table, metric="auc")
    np.testing.assert_array_equal(env.available, [[True, True, False], [True, True, False]])
    points = [np.asarray(env_task(env, row).points)[:2] for row in range(2)]  # one scale for both tasks
    np.testing.assert_allclose(points, [[[0.25, 0], [0.75, 1]], [[1, 2 / 3], [0.5, 0.5]]], atol=1e-6)
    assert np.isfinite(np.asarray(env.own_candidates)).all()
    brier = TableEnv.from_table(table, metric="brier", maximise=False)
    np.testing.assert_allclose(env_task(brier, 0).best_value, -0.11, rtol=1e-6)


def test_env_from_csv_options(write):
    env = TableEnv.from_csv(
        write(GRID),
        task="set",
        params=("alpha", "lambda"),
        metric="loss",
        log="lambda",
        maximise=False,
        scale_to_unit=False,
    )
    np.testing.assert_allclose(env.candidates, [[0, 0], [0.5, np.log(10)]], rtol=1e-6)
    np.testing.assert_array_equal(env.values, [[-9, -8], [-6, -7]])


def test_constant_parameter_becomes_zero():
    table = Table(("a",), ("x", "constant"), np.array([[2.0, 7.0], [4.0, 7.0]]), {"y": np.ones((1, 2))})
    np.testing.assert_array_equal(TableEnv.from_table(table).candidates, [[0, 0], [1, 0]])


def test_metric_errors():
    with pytest.raises(ValueError, match=r"`metric` should be one of .*'acuracy'.*did you mean 'accuracy'"):
        TableEnv.from_table(load_table("glmnet"), metric="acuracy")
    with pytest.raises(ValueError, match=r"`metric` should be one of 'auc', .*no name"):
        TableEnv.from_table(load_table("glmnet"))
    table = Table(("a", "b"), ("x",), np.zeros((2, 1)), {"y": np.array([[1, 2], [np.nan, np.nan]])})
    with pytest.raises(ValueError, match=r"`metric` should be known somewhere .* unknown on 'b'"):
        TableEnv.from_table(table)


def test_lifelong_run_plays_only_configurations_of_the_file(write):
    """Tasks of two to five configurations, one of them without a value; rewards are values of the file."""
    rng = np.random.default_rng(0)
    sizes = [5, 2, 4, 3]
    runs = [(t, *rng.random(2), rng.random()) for t, size in enumerate(sizes) for _ in range(size)]
    lines = [f"{t},{a!r},{b!r},{auc!r}" for t, a, b, auc in np.array(runs).tolist()]
    lines[1] = lines[1].rsplit(",", 1)[0] + ",NA"
    table = read_csv(write("\n".join(["data_id,alpha,lambda,auc", *lines])))
    np.testing.assert_array_equal(table.present.sum(1), [4, 2, 4, 3])
    env = TableEnv.from_table(table)
    result = run_lifelong(
        env, Cosine(4, dim=2), GPUCB(1.0, 0.1), MetaKGL(0.01, 0.1), num_tasks=4, horizon=8, key=KEY
    )
    actions = np.asarray(result.actions)
    rows = np.arange(4)[:, None]
    assert table.present[rows, actions].all()
    np.testing.assert_allclose(result.rewards, table.metric()[rows, actions], rtol=1e-5)
    assert (np.asarray(result.regret) >= -1e-6).all()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"7": ' * 100_000, "nested too deeply"),
        ('{"7": {"3": {"X": [[' + "9" * 5000 + ']], "y": [[1]]}}}', "cannot be read as JSON"),
        ('{"7": {"3": {"X": [[1' + "0" * 400 + ']], "y": [[1]]}}}', 'row 0: "X" should be .* of 1329 bits'),
        ('{"7": {"3": {"X": [[1], [2]], "y": [[1' + "0" * 400 + "], [1]]}}}", 'row 0: "y" should be'),
        ('{"7": {"3": {"X": [' + "[" * 500 + "]" * 500 + '], "y": [[1]]}}}', 'row 0: "X" should be'),
        ('{"7": {"3": {"X": [[1], [2]], "y": [["' + "a" * 9000 + '"], [1]]}}}', 'row 0: "y" should be'),
        ("\udcff", "cannot be read as JSON"),
    ],
)
def test_hostile_hpob_files_raise_the_readers_error(tmp_path, content, message):
    path = tmp_path / "hostile.json"
    path.write_text(content, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ValueError, match=rf"hostile\.json.*{message}") as caught:
        read_hpob(path, "7")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "content", [b"task,x,y\n\xff,1,2\n", b"task,x,y\na,1,\0\n", b"task,x,y\na,1," + b"z" * 100_000 + b"\n"]
)
def test_hostile_csv_files_raise_the_readers_error(tmp_path, content):
    path = tmp_path / "hostile.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"hostile\.csv, (after )?line \d") as caught:
        read_csv(path)
    assert len(str(caught.value)) < 1000
