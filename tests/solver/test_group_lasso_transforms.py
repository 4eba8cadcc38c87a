"""The solver under `jit`, `vmap`, `scan` and `grad`; trace counts; lowering for every platform."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jlibo import Status, group_lasso, group_lasso_path, lambda_max
from jlibo.solver.group_lasso import _group_lasso, _solve_one
from jlibo.solver.scaled_problem import ProblemData, group_norms
from tests.solver.problems import assert_same, layout, make_problem, solve, stack

TOL = 1e-8


def stacked(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def run(design, targets, mask, lam, *, groups):
    return group_lasso(design, targets, lam, groups=groups, mask=mask, tol=TOL)


def as_batch(design, targets, mask, lam, *, groups):
    """The program for accelerators: the inner solver as one batch, compacted as its elements finish."""
    ids = None if groups is None else tuple(groups.tolist())
    data = ProblemData(design, targets, mask, lam)
    coef, gap, num_steps, status = _solve_one(
        ids, data, None, jnp.asarray(TOL, design.dtype), jnp.asarray(10_000, jnp.int32)
    )
    return type(jax.eval_shape(partial(run, groups=groups), design, targets, mask, lam))(
        coef, group_norms(coef, ids), gap, num_steps, status
    )


@pytest.mark.parametrize(
    "name, fn",
    [
        ("mixed", run),
        ("wide", run),
        ("mixed", as_batch),
        pytest.param("wide", as_batch, marks=pytest.mark.slow),
        pytest.param("single", as_batch, marks=pytest.mark.slow),
    ],
)
def test_vmap_equals_a_loop(name, fn):
    """Designs x lams: nested, in one `vmap`, with the design shared, under `jit` and in a `scan`."""
    # In groups of one, equal columns may share their coefficients in any way.
    problems = [make_problem(name, seed, collinear=name != "single") for seed in range(3)]
    batch, groups = stack(problems), problems[0].groups
    lams = 0.3 * problems[0].lambda_max * np.array([0.1, 0.5, 1.0, 100.0])
    alone = [[solve(problem, lam, tol=TOL) for lam in lams] for problem in problems]
    table = stacked([stacked(row) for row in alone])
    one = partial(fn, groups=groups)

    nested = jax.jit(jax.vmap(jax.vmap(one, (None, None, None, 0)), (0, 0, 0, None)))(*batch[:3], lams)
    assert_same(nested, table, tol=1e-11)
    if (name, fn) != ("mixed", run):
        return
    shared = jax.vmap(one, (None, None, None, 0))(*problems[1][:3], lams)
    assert_same(shared, jax.tree.map(lambda leaf: leaf[1], table), tol=1e-11)
    _, scanned = jax.jit(
        lambda data: jax.lax.scan(lambda _, lam: (0, jax.vmap(one, (0, 0, 0, None))(*data, lam)), 0, lams)
    )(batch[:3])
    assert_same(jax.tree.map(lambda leaf: np.swapaxes(leaf, 0, 1), scanned), table, tol=1e-11)


@pytest.mark.parametrize("fn", [run, as_batch], ids=["cpu", "accelerator"])
def test_batch_with_one_hard_problem_equals_single_solves(fn):
    problems = [make_problem("mixed", seed, collinear=False) for seed in range(64)]
    lams = np.array([0.5 * problem.lambda_max for problem in problems])
    lams[40] = 0.002 * problems[40].lambda_max
    batch = stack(problems)
    together = jax.jit(jax.vmap(partial(fn, groups=batch.groups)))(*batch[:3], lams)
    alone = [solve(problem, lam, tol=TOL) for problem, lam in zip(problems, lams, strict=True)]
    steps = np.array([int(solution.num_steps) for solution in alone])
    assert steps[40] > 3 * np.median(steps) and steps[40] == steps.max()
    assert (together.status == Status.CONVERGED).all()
    np.testing.assert_array_equal(together.num_steps, steps)
    np.testing.assert_allclose(together.coef, [solution.coef for solution in alone], atol=1e-11)
    words = together.describe()
    assert f"64 problems: 64 converged; steps {steps.min()} to {steps.max()}, median" in words


# ---------------------------------------------------------------------------------------------- trace counts


def test_a_sweep_traces_once(count_traces):
    problems = [make_problem("mixed", seed) for seed in range(6)]
    groups = problems[0].groups
    counted, counter = count_traces(partial(run, groups=groups))
    sweep = jax.jit(jax.vmap(jax.vmap(counted, (None, None, None, 0)), (0, 0, 0, None)))
    for first, scale in ((0, 1.0), (3, 0.1)):
        batch = stack(problems[first : first + 3])
        sweep(*batch[:3], scale * np.array([0.1, 0.2, 0.3, 0.4]))
    assert counter.count == 1


def test_changed_numbers_do_not_retrace():
    problem = make_problem("mixed", 0)
    solve(problem, 0.1)
    before = _group_lasso._cache_size()
    for lam, options in [(0.2, {}), (1, dict(tol=1e-3)), (jnp.ones(()), dict(max_steps=7))]:
        solve(problem, lam, **options)
    assert _group_lasso._cache_size() == before


# ------------------------------------------------------------------------------------------------- gradients

GRADIENT_GROUPS = {"grouped": np.array([0, 1, 0, 2, 1, 2]), "single": None}


@pytest.mark.parametrize("kind", GRADIENT_GROUPS)
def test_gradients_equal_finite_differences(kind):
    groups = GRADIENT_GROUPS[kind]
    rng = np.random.default_rng(0)
    design, targets = rng.standard_normal((2, 5, 6)), rng.standard_normal((2, 5))
    mask = np.arange(5) < np.array([[5], [4]])
    lam = 0.3 * lambda_max(design, targets, groups=groups, mask=mask)
    weights = rng.standard_normal((2, 6))

    @jax.jit
    def loss(design, targets, lam):
        solution = group_lasso(design, targets, lam, groups=groups, mask=mask, tol=1e-13)
        return (weights * solution.coef**2).sum() + solution.group_norms.sum()

    args = (design, targets, lam)
    solution = group_lasso(*args, groups=groups, mask=mask, tol=1e-13)
    assert 0 < np.count_nonzero(solution.group_norms) < len(solution.group_norms)  # some in use, some not

    gradient = jax.jit(jax.grad(loss, (0, 1, 2)))
    grads = gradient(*args)
    step = 1e-5
    for position, grad in enumerate(grads):
        for direction in rng.standard_normal((4, *np.shape(grad))):
            ahead, behind = list(args), list(args)
            ahead[position] = args[position] + step * direction
            behind[position] = args[position] - step * direction
            slope = (loss(*ahead) - loss(*behind)) / (2 * step)
            np.testing.assert_allclose((grad * direction).sum(), slope, rtol=1e-5, atol=1e-7)
    assert not np.any(grads[0][~mask]) and not np.any(grads[1][~mask])

    lams = lam * np.array([0.5, 1.0, 2.0, 10.0])  # at the last one, solution and gradient are zero
    batched = jax.jit(jax.vmap(gradient, (None, None, 0)))(design, targets, lams)
    for lane, one_lam in enumerate(lams):
        for got, want in zip(batched, gradient(design, targets, one_lam), strict=True):
            np.testing.assert_allclose(got[lane], want, rtol=1e-7, atol=1e-9)
    assert all(not np.any(field[3]) for field in batched)


# ------------------------------------------------------------------------------------------------- platforms

_groups = layout("wide")
EXPORTS = {
    "one": partial(run, groups=_groups),
    "batch": jax.vmap(partial(run, groups=_groups)),
    "lambda_max": lambda design, targets, mask, lam: lambda_max(design, targets, groups=_groups, mask=mask),
    "path": lambda design, targets, mask, lam: group_lasso_path(
        design, targets, lam * jnp.ones(3, design.dtype), groups=_groups, mask=mask
    ),
    "gradient": jax.grad(lambda *args: run(*args, groups=_groups).coef.sum()),
}


@pytest.mark.parametrize("what", EXPORTS)
def test_lowers_for_every_platform_without_callbacks(what):
    problem = make_problem("wide", 0).cast(np.float32)
    args = (*problem[:3], np.float32(0.1))
    if what == "batch":
        args = tuple(np.stack([arg] * 16) for arg in args)
    shapes = [jax.ShapeDtypeStruct(np.shape(arg), np.asarray(arg).dtype) for arg in args]
    exported = jax.export.export(jax.jit(EXPORTS[what]), platforms=("cpu", "cuda", "tpu"))(*shapes)
    assert exported.platforms == ("cpu", "cuda", "tpu")
    calls = re.findall(r"custom_call @(\w+)", exported.mlir_module())
    assert not [call for call in calls if "callback" in call]
