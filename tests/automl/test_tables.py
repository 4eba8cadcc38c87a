"""The tables of the AutoML benchmark: files, kinds of parameters, thinning, and unrelated tasks."""

import itertools

import numpy as np
import pytest

import jlibo
from benchmarks.automl import __main__ as automl
from benchmarks.automl import tables
from benchmarks.automl.problem import draw_unrelated, encode, thin
from tests.automl.toys import mixed_arrays, toy_problem, write_table


def test_npz_table_has_parameters_of_their_kinds(mixed):
    configs, scores = mixed_arrays()
    assert mixed.space.names == ("depth", "kernel", "rate")
    assert mixed.space["kernel"] == jlibo.Categorical(["rbf", "poly", "linear"])
    assert isinstance(mixed.space["depth"], jlibo.Int) and mixed.space["rate"].log
    assert any("fixed" in note for note in mixed.notes) and any("failed" in note for note in mixed.notes)
    for row in (0, 7):
        config = mixed.space.from_unit(mixed.points[row])
        assert config["depth"] == configs[row, 2]
        assert config["kernel"] == ["rbf", "poly", "linear"][int(configs[row, 1])]
        assert config["rate"] == pytest.approx(configs[row, 0])
    # Less is better in the file; failed evaluations are not available.
    np.testing.assert_array_equal(mixed.values, -scores)
    assert len(mixed.of_task(0)[2]) == 18 and 3 not in mixed.of_task(0)[2]


def test_npz_table_may_have_own_and_padded_configurations(tmp_path):
    configs, scores = mixed_arrays(shared=False)
    configs[1, 15:], scores[1, 15:] = np.nan, np.nan
    write_table(tmp_path / "own.npz", configs, scores, maximise=True)
    problem = tables.read_npz(tmp_path / "own.npz")
    assert not problem.shared and np.isfinite(problem.points).all()
    assert [len(problem.of_task(task)[2]) for task in range(3)] == [18, 15, 20]
    few = thin(problem, num_configs=12, seed=1)
    assert few.values.shape == (3, 12) and few.is_available.all()  # available rows are taken first
    np.testing.assert_array_equal(few.values, thin(problem, num_configs=12, seed=1).values)
    for task in range(3):
        pairs = {(*point, value) for point, value in zip(few.points[task], few.values[task], strict=True)}
        points, values, _ = problem.of_task(task)
        assert pairs <= {(*point, value) for point, value in zip(points, values, strict=True)}


@pytest.mark.parametrize(
    "changes, words",
    [
        (dict(kinds=["float", "cat", "colour", "float"]), "'depth'.*colour"),
        (dict(choices=[None, ["rbf", "poly"], None, None]), "'kernel'.*choices"),
        (dict(names=["rate", "kernel", "depth"]), "`names`.*differ in length"),
        (dict(tasks=None), "`meta` cannot be read"),
    ],
)
def test_npz_table_that_is_wrong_is_refused_by_name(tmp_path, changes, words):
    write_table(tmp_path / "bad.npz", *mixed_arrays(), **changes)
    with pytest.raises(tables.TableError, match=f"bad.npz.*{words}"):
        tables.read_npz(tmp_path / "bad.npz")


def test_columns_follow_sorted_names_without_constant_parameters():
    problem = toy_problem([[1, 2, 3]])
    assert problem.space.names == ("a", "b")
    np.testing.assert_allclose(problem.points, [[1, 0], [0.5, 0.5], [0, 1]])
    for point, b in zip(problem.points, (0, 5, 10), strict=True):
        assert problem.space.from_unit(point) == {"a": pytest.approx(1 - b / 10), "b": pytest.approx(b)}


def test_csv_file_is_read(tmp_path):
    path = tmp_path / "table.csv"
    lines = [
        f"{task},{rate},{depth + task},{rate * depth}"
        for task in (0, 1)
        for rate, depth in itertools.product((0.01, 0.1, 1), (1, 2))
    ]
    path.write_text("\n".join(["task,rate,depth,loss", *lines]))
    arguments = automl.read_arguments(["--csv", str(path), "--log", "rate", "--minimise"])
    (problem,) = automl.read_problems(arguments)
    assert problem.space.names == ("depth", "ln rate") and not problem.shared
    points, values, _ = problem.of_task(0)
    np.testing.assert_allclose(points[values.argmax()], [0, 0])
    np.testing.assert_allclose(values.max(), -0.01)


def test_thinning_is_a_seeded_draw_that_is_noted(mixed):
    few = thin(mixed, num_tasks=2, num_configs=8, seed=3)
    assert few.values.shape == (2, 8) and few.points.shape == (8, 3)
    assert "2 of its 3 tasks" in few.notes and "8 of its 20 configurations" in few.notes
    assert few.digest() == thin(mixed, num_tasks=2, num_configs=8, seed=3).digest() != mixed.digest()
    assert thin(mixed, num_tasks=9, num_configs=99).digest() == mixed.digest()


def test_skipped_tasks_are_those_drawn_without_skipping(mixed):
    chosen, rest = thin(mixed, num_tasks=2, seed=3), thin(mixed, skip_tasks=2, seed=3)
    assert sorted(chosen.tasks + rest.tasks) == sorted(mixed.tasks) and len(rest.tasks) == 1
    assert "1 of its 3 tasks, none of the first 2" in rest.notes
    with pytest.raises(ValueError, match="3 tasks, so 3 cannot be skipped"):
        thin(mixed, skip_tasks=3)


def test_choices_of_a_categorical_are_equally_far_apart(mixed):
    points = np.stack(
        [mixed.space.to_unit(dict(depth=1, kernel=k, rate=1e-3)) for k in ("rbf", "linear", "poly")]
    )
    encoded = encode(mixed.space, points)
    assert encoded.shape == (3, 5)
    distances = np.linalg.norm(encoded[:, None] - encoded, axis=-1)
    np.testing.assert_allclose(distances, 1 - np.eye(3), atol=1e-12)


def test_unrelated_tasks_have_swapped_and_reversed_coordinates(small, mixed):
    moved = draw_unrelated(small, 2, seed=0)
    assert moved.shape == (2, 4, *small.points.shape)
    centred = np.sort(np.abs(moved - 0.5), axis=-1)
    np.testing.assert_allclose(centred, np.broadcast_to(np.sort(np.abs(small.points - 0.5)), moved.shape))
    assert len({moved[order, task].tobytes() for order in range(2) for task in range(4)}) > 2
    # Choices are renamed: the same rows share a choice before and after.
    before = mixed.points[:, 1]
    renamed = draw_unrelated(mixed, 4, seed=0)[..., 1]
    assert np.isin(renamed, before).all() and (renamed != before).any()
    assert ((renamed[..., :, None] == renamed[..., None, :]) == (before[:, None] == before)).all()


def test_the_shipped_table_is_used_beside_others_on_request(tmp_path):
    path = tmp_path / "table.npz"
    write_table(path, *mixed_arrays())
    for words, names in ([], ["table"]), (["--shipped"], ["table", "glmnet"]):
        problems = automl.read_problems(automl.read_arguments(["--table", str(path), *words]))
        assert [problem.name for problem in problems] == names
    (problem,) = automl.read_problems(automl.read_arguments([]))
    assert problem.name == "glmnet"
