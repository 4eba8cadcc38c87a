"""kappa: brackets contain brute-force values, and the bounds of the appendix hold or are shown not to."""

import importlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo import theory
from tests.theory import reference


def random_design(seed, num_rows, num_features, correlation=0.0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(num_rows, num_features))
    return np.sqrt(1 - correlation) * rows + np.sqrt(correlation) * rng.normal(size=(num_rows, 1))


@pytest.mark.parametrize(
    "seed, num_features, support_size, num_rows, correlation",
    [
        (0, 8, 1, 30, 0.0),
        (1, 8, 2, 12, 0.3),
        (2, 6, 3, 8, 0.0),
        (3, 8, 2, 40, 0.6),
        (4, 8, 1, 5, 0.0),
        (5, 3, 3, 10, 0.2),
    ],
)
def test_bracket_contains_the_brute_force_value(seed, num_features, support_size, num_rows, correlation):
    design = random_design(seed, num_rows, num_features, correlation)
    exact = reference.kappa_brute_force(design, support_size)
    bracket = theory.kappa_bracket(jnp.asarray(design)[None], support_size, key=jax.random.key(seed))
    assert bracket.lower <= exact + 1e-6
    assert bracket.upper >= exact - 1e-5
    # The search is nearly exact on small problems.
    assert bracket.upper <= exact * 1.05 + 0.02


def test_upper_bound_is_the_ratio_of_a_feasible_direction():
    design = jnp.asarray(np.stack([random_design(seed, 9, 6) for seed in range(3)]))
    groups, mask = [0, 0, 1, 2, 2, 3], jnp.arange(9) < jnp.array([[9], [6], [7]])
    found = theory.kappa_search(design, 2, groups=groups, mask=mask, key=jax.random.key(0))
    coef = np.asarray(found.coef)
    norms = np.sqrt([(coef[:, np.asarray(groups) == j] ** 2).sum() for j in range(4)])
    inside = norms[np.asarray(found.support)].sum()
    assert np.asarray(found.support).sum() == 2
    assert norms.sum() - inside <= 3 * inside * (1 + 1e-9)
    fitted = np.einsum("srf,sf->sr", np.asarray(design), coef)[np.asarray(mask)]
    ratio = np.sqrt(3 / 22 * (fitted**2).sum()) / inside
    np.testing.assert_allclose(found.ratio, ratio, rtol=1e-6)


def test_two_tasks_have_the_kappa_of_the_worse_one_at_most():
    designs = [random_design(seed, 20, 5, 0.5) for seed in (0, 1)]
    alone = [reference.kappa_brute_force(design, 2) for design in designs]
    bracket = theory.kappa_bracket(jnp.asarray(np.stack(designs)), 2, key=jax.random.key(0), num_starts=64)
    assert bracket.upper <= min(alone) * 1.05
    assert bracket.lower <= min(alone)


def test_search_is_traced_once_for_any_number_of_rows(count_traces, monkeypatch):
    module = importlib.import_module("jlibo.theory.kappa_search")  # the package has a function of that name
    project, projections = count_traces(module._project_to_ball)
    monkeypatch.setattr(module, "_project_to_ball", project)
    found, counts = [], []
    for num_rows in (9, 30):
        design = jnp.asarray(random_design(0, num_rows, 7))[None]
        found.append(theory.kappa_search(design, 2, num_starts=3, num_rounds=2, key=jax.random.key(0)).ratio)
        counts.append(projections.count)
    assert 0 < counts[0] == counts[1] and found[0] != found[1]


def orthogonal_except_for_one(c_od, num_others):
    """A design with c_d = 1 whose first feature has the inner product c_od with all others."""
    gram = np.full((num_others + 1, num_others + 1), c_od**2)
    gram[0], gram[:, 0] = c_od, c_od
    np.fill_diagonal(gram, 1.0)
    return np.linalg.cholesky(gram).T * np.sqrt(num_others + 1)


def test_printed_lemma_is_refuted_and_the_proved_one_holds():
    design = jnp.asarray(orthogonal_except_for_one(0.05, 400))[None]
    c_d, c_od = theory.gram_constants(design)
    np.testing.assert_allclose([c_d, c_od], [1, 0.05], atol=1e-6)
    found = theory.kappa_search(design, 1, num_starts=4, num_rounds=3, key=jax.random.key(0))
    assert found.ratio < theory.kappa_from_gram(c_d, c_od, 1, reading="printed")
    assert found.ratio >= theory.kappa_from_gram(c_d, c_od, 1)
    np.testing.assert_allclose(found.ratio**2, (1 - 3 * 0.05) ** 2, rtol=0.05)


def test_lower_bounds_equal_formulas_written_out():
    design = np.stack([random_design(seed, 15, 4) for seed in range(2)])
    grams = [block.T @ block / 15 for block in design]
    c_d = min(gram[i, i] for gram in grams for i in range(4))
    c_od = max(abs(gram[i, j]) for gram in grams for i, j in itertools.permutations(range(4), 2))
    np.testing.assert_allclose(theory.gram_constants(jnp.asarray(design)), [c_d, c_od], rtol=1e-10)
    smallest = min(np.linalg.eigvalsh(gram)[0] for gram in grams)
    from_eigenvalue = theory.kappa_from_eigenvalue(jnp.asarray(design), 2)
    np.testing.assert_allclose(from_eigenvalue, np.sqrt(smallest / 2), rtol=1e-6)
    printed = theory.kappa_from_gram(1.0, 0.02, 3, reading="printed")
    np.testing.assert_allclose(printed, np.sqrt(1 / 3 - 0.1), rtol=1e-6)
    np.testing.assert_allclose(theory.kappa_from_gram(1.0, 0.02, 3), np.sqrt(1.02 / 3 - 0.14), rtol=1e-6)


def test_gram_constants_of_groups_bound_every_pair_of_vectors():
    design = np.stack([random_design(seed, 30, 5) for seed in range(2)])
    groups = np.array([0, 1, 0, 2, 2])
    c_d, c_od = theory.gram_constants(jnp.asarray(design), groups=groups)
    rng = np.random.default_rng(0)
    for _ in range(200):
        task, (i, j) = rng.integers(2), rng.permutation(3)[:2]
        left, right = (np.where(groups == k, rng.normal(size=5), 0) for k in (i, j))
        left, right = left / np.linalg.norm(left), right / np.linalg.norm(right)
        gram = design[task].T @ design[task] / 30
        assert abs(left @ gram @ right) <= c_od + 1e-9
        assert left @ gram @ left >= c_d - 1e-9


@pytest.mark.parametrize("support_size", [0, 5, 2.0, True])
def test_wrong_support_size_is_refused(support_size):
    with pytest.raises(ValueError, match="support_size"):
        theory.kappa_lower(jnp.ones((1, 3, 4)), support_size)


# --- uniform exploration ------------------------------------------------------------------------------------


def test_constants_of_exploration_hold_as_often_as_promised():
    """2,000 designs of uniform rows: c_d or c_od fails in no more than delta of them."""
    features, num_rows, delta = jlibo.Cosine(6), 60, 0.2
    z, inner = theory.map_moments(features)
    c_d, c_od = theory.exploration_constants(num_rows, 6, z, delta, inner=inner)

    def measured(key):
        design = features(jlibo.sample_box(features, num_rows, key=key))[None]
        return jnp.stack(theory.gram_constants(design))

    keys = jax.random.split(jax.random.key(0), 2000)
    own_c_d, own_c_od = jax.jit(jax.vmap(measured))(keys).T
    assert ((own_c_d < c_d) | (own_c_od > c_od)).mean() <= delta
    # The bound is not empty: c_d is positive here, and the measured values come near it.
    assert 0 < c_d < own_c_d.min() < z


def test_moments_of_maps():
    np.testing.assert_allclose(theory.map_moments(jlibo.Cosine(10)), [0.5, 0.0], atol=1e-6)
    z, inner = theory.map_moments(jlibo.Legendre(10))
    np.testing.assert_allclose(z, 1 / 21, rtol=1e-4)
    assert inner < 1e-4
    np.testing.assert_allclose(theory.map_moments(jlibo.Cosine(6, dim=2))[0], 0.25, atol=1e-5)


def test_midpoints_are_inside_and_even():
    points = np.asarray(jlibo.box_midpoints(jlibo.Legendre(3), 4))[:, 0]
    np.testing.assert_allclose(points, [-0.75, -0.25, 0.25, 0.75], atol=1e-6)


def test_kappa_of_exploration_converges_and_is_monotone():
    rows = jnp.geomspace(1e3, 1e12, 60)
    kappa = theory.exploration_kappa(rows, 50, 5, 0.5, 0.1)
    assert (jnp.diff(kappa) >= 0).all()
    assert kappa[0] == 0
    np.testing.assert_allclose(kappa[-1], theory.population_kappa(0.5, 5), rtol=1e-3)
    at = lambda **changes: theory.exploration_kappa(  # noqa: E731
        **{
            "num_rows": 1e6,
            "num_features": 50,
            "support_size": 5,
            "mean_square": 0.5,
            "delta": 0.1,
            **changes,
        }
    )
    assert at() > at(num_features=100) > 0
    assert at() > at(support_size=6) > 0
    assert at() < at(mean_square=0.6)
    assert at() < at(delta=0.2)
    assert at() > at(inner=0.001) > 0
    assert at() > at(kernel_bound=1.1) > 0
    assert at() > at(num_designs=10) > 0
    # The corollary claims more than the proposition and the lemma together give.
    assert at(reading="printed") > at()


def test_rows_needed_inverts_the_kappa_of_exploration():
    needed = theory.exploration_rows_needed(50, 5, 0.5, 0.1, kappa=0.2)
    np.testing.assert_allclose(theory.exploration_kappa(needed, 50, 5, 0.5, 0.1), 0.2, rtol=1e-6)
    assert theory.exploration_rows_needed(50, 5, 0.5, 0.1, kappa=0.4) == np.inf


def test_functions_are_jittable_and_vmappable():
    designs = jnp.asarray(np.stack([random_design(seed, 12, 4)[None] for seed in range(3)]))
    lower = jax.jit(jax.vmap(lambda design: theory.kappa_lower(design, 2)))(designs)
    each = [theory.kappa_lower(design, 2) for design in designs]
    np.testing.assert_allclose(lower, each, rtol=1e-6)
    keys = jax.random.split(jax.random.key(0), 3)
    upper = jax.vmap(lambda design, key: theory.kappa_search(design, 2, key=key).ratio)(designs, keys)
    assert (upper >= lower - 1e-9).all()
