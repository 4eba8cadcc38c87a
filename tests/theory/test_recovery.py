"""Recovery: formulas against NumPy, bounds against simulation, monotonicity and limits."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg, stats

import jlibo
from jlibo import theory
from tests.theory import reference

NUMBERS = dict(beta_min=0.5, omega=0.2, kappa=0.6, noise_std=0.02)
SIZES = dict(num_rows=400.0, num_tasks=5.0, num_kernels=20.0)


def probability(**changes):
    return float(theory.recovery_probability(**{**SIZES, **NUMBERS, **changes}))


@pytest.mark.parametrize("seed", range(20))
def test_probability_equals_the_formula_written_out(seed):
    rng = np.random.default_rng(seed)
    rows, tasks, kernels = rng.integers(10, 5000), rng.integers(1, 50), rng.integers(2, 500)
    beta_min = rng.uniform(0.2, 2)
    numbers = dict(
        beta_min=beta_min,
        omega=rng.uniform(0, 1.1) * beta_min,
        kappa=rng.uniform(0.2, 1),
        noise_std=rng.choice([0.0, 0.01, 0.05]),
    )
    got = theory.recovery_probability(rows, tasks, kernels, **numbers)
    np.testing.assert_allclose(
        got, reference.recovery_probability(rows, tasks, kernels, **numbers), atol=1e-9
    )
    printed = theory.recovery_probability(rows, tasks, kernels, **numbers, reading="printed")
    expected = reference.recovery_probability(rows, tasks, kernels, **numbers, exponent_factor=1.0)
    np.testing.assert_allclose(printed, expected, atol=1e-9)


def test_the_papers_own_numbers():
    """c_1 = .5, omega = .25, sigma = .1, five kernels of mean square 1/2: kappa^2 is at most .1."""
    kappa = theory.population_kappa(0.5, 5)
    np.testing.assert_allclose(kappa**2, 0.1)
    numbers = dict(beta_min=0.5, omega=0.25, kappa=kappa)
    np.testing.assert_allclose(theory.least_rows(**numbers, noise_std=0.1), 128**2)
    assert round(float(theory.theorem_lam(30, **numbers)), 4) == 0.0006
    assert theory.recovery_probability(16_384, 10**9, 50, **numbers, noise_std=0.1) == 0
    assert theory.recovery_probability(17_000, 10**9, 50, **numbers, noise_std=0.1) > 0.99


def test_probability_is_monotone_in_every_argument():
    assert 0 < probability() < 1
    for name in ("num_rows", "num_tasks"):
        assert probability(**{name: SIZES[name] * 1.1}) > probability()
    assert probability(num_kernels=25.0) < probability()
    for name in ("beta_min", "kappa"):
        assert probability(**{name: NUMBERS[name] * 1.01}) >= probability()
    assert probability(kappa=0.61) > probability()
    assert probability(noise_std=0.021) < probability()
    # omega-bar is largest at half of c_1 and falls on both sides.
    curve = [probability(omega=omega) for omega in (0.21, 0.25, 0.29)]
    assert curve[1] > curve[0] > probability() and curve[1] > curve[2]


def test_limits():
    assert probability(noise_std=0.0) == 1
    assert probability(num_tasks=1e9) == 1
    assert probability(num_rows=1e12) == 1
    assert probability(noise_std=10.0) == 0
    assert probability(kappa=0.0) == 0
    assert probability(omega=0.5) == 0
    assert probability(omega=0.5, noise_std=0.0) == 0


def test_inversions_return_to_the_probability():
    delta = 0.05
    rows = theory.rows_needed(delta, 5, 20, **NUMBERS)
    np.testing.assert_allclose(probability(num_rows=rows), 0.95, rtol=1e-9)
    tasks = theory.tasks_needed(delta, 400, 20, **NUMBERS)
    np.testing.assert_allclose(probability(num_tasks=tasks), 0.95, rtol=1e-9)
    rest = dict(kappa=0.6, noise_std=0.02)
    smallest = theory.smallest_beta_min(delta, 400, 5, 20, **rest)
    np.testing.assert_allclose(probability(beta_min=smallest, omega=smallest / 2), 0.95, rtol=1e-9)
    assert theory.tasks_needed(delta, 4, 20, **NUMBERS) == np.inf


def test_lam_of_the_noise_meets_that_of_the_theorem_at_the_rows_needed():
    rows = theory.rows_needed(0.05, 5, 20, **NUMBERS)
    by_noise = theory.noise_lam(rows, 5, 20, noise_std=NUMBERS["noise_std"], delta=0.05)
    rest = {name: value for name, value in NUMBERS.items() if name != "noise_std"}
    np.testing.assert_allclose(by_noise, theory.theorem_lam(5, **rest), rtol=1e-9)
    at = lambda **changes: theory.noise_lam(  # noqa: E731
        **{"num_rows": 10, "num_tasks": 5, "num_kernels": 20, "noise_std": 0.1, "delta": 0.1, **changes}
    )
    assert at(num_rows=11) < at() and at(num_tasks=6) < at() and at(delta=0.2) < at()
    assert at(num_kernels=21) > at() and at(noise_std=0.11) > at() and at(noise_std=0.0) == 0


def past_of(design, targets):
    sizes = jlibo.RunSizes(
        tuple(range(design.shape[-1])), design.shape[0], design.shape[1], design.shape[1], design.dtype
    )
    learner = jlibo.MetaKGL(4 * 0.5, 0.0, lam_scaling="noise")
    state = learner.init(sizes)
    for rows, rewards in zip(design, targets, strict=True):
        data = jlibo.TaskData(rows, rewards, jnp.ones(len(rows), bool))
        state, info = learner.update(state, data, sizes)
    return state.past, sizes, info


def test_noise_scale_of_features_of_size_one_is_the_worst_case():
    design = jnp.asarray(orthogonal_design(3, 16, 6), float)

    @jax.jit
    def noise_scale(design):
        past, sizes, _ = past_of(design, jnp.zeros((3, 16)))
        return jlibo.meta.noise.noise_scale(past, sizes)

    scale = noise_scale(design)
    expected = theory.noise_lam(16, 3, 6, noise_std=0.25, delta=jlibo.meta.noise.NOISE_DELTA)
    np.testing.assert_allclose(scale, expected, rtol=1e-6)


def test_noise_alone_selects_no_kernel():
    """200 data sets of pure noise: lam = 4 sigma with "noise" selects a kernel in no more than 10 %."""
    features = jlibo.Cosine(8)
    design = features(jlibo.sample_box(features, 2 * 12, key=jax.random.key(0))).reshape(2, 12, 8)

    def selected(key):
        return past_of(design, 0.5 * jax.random.normal(key, (2, 12)))[2].support.any()

    share = jax.jit(jax.vmap(selected))(jax.random.split(jax.random.key(1), 200)).mean()
    assert share <= jlibo.meta.noise.NOISE_DELTA


def test_small_failures_keep_their_precision_in_float32():
    numbers = {name: jnp.float32(value) for name, value in {**SIZES, **NUMBERS}.items()}
    exact = theory.recovery_log_failure(**{**SIZES, **NUMBERS, "num_tasks": 1000.0})
    short = theory.recovery_log_failure(**{**numbers, "num_tasks": jnp.float32(1000)})
    assert exact < -100 and short.dtype == jnp.float32
    np.testing.assert_allclose(short, exact, rtol=1e-4)


def test_printed_exponent_is_refuted_by_a_normal_variable():
    """One row, one task: the event behind the theorem is |Z| >= 1 + t, more likely than exp(-t^2)."""
    t = 4.0
    tail = 2 * stats.norm.sf(1 + t)
    assert np.exp(-(t**2)) < tail < np.exp(-(t**2) / 2)


# --- a given design -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [[0, 1, 2, 3, 4], [0, 0, 1, 2, 1]])
def test_design_failure_equals_the_formula_written_out(groups):
    design = np.random.default_rng(0).normal(size=(3, 7, 5))
    for lam in (0.1, 0.3, 1.0):
        expected = reference.design_failure(design, lam, 0.3, groups)
        got = theory.design_failure(jnp.asarray(design), lam, 0.3, groups=groups)
        np.testing.assert_allclose(got, expected, rtol=1e-8)


def test_masked_rows_do_not_count():
    design = np.random.default_rng(1).normal(size=(2, 6, 3))
    mask = np.arange(6) < np.array([[4], [4]])
    got = theory.design_failure(jnp.asarray(design), 0.4, 0.2, mask=jnp.asarray(mask))
    np.testing.assert_allclose(got, theory.design_failure(jnp.asarray(design[:, :4]), 0.4, 0.2), rtol=1e-10)


def test_bound_on_the_noise_holds_as_often_as_promised():
    """20,000 noise vectors: every group exceeds lam N / 4 no more often than its bound allows."""
    features, groups = jlibo.Cosine(4), [0, 0, 1, 2]
    design = np.asarray(features(jlibo.sample_box(features, 30, key=jax.random.key(0)))).reshape(3, 10, 4)
    noise = 0.5 * np.random.default_rng(0).normal(size=(20_000, 3, 10))
    products = np.einsum("nsr,srf->nsf", noise, design)
    sizes = np.stack([(products[..., np.asarray(groups) == j] ** 2).sum((1, 2)) ** 0.5 for j in range(3)])
    for lam in np.linspace(0.2, 1.0, 9):
        bound = np.asarray(theory.design_failure(jnp.asarray(design), lam, 0.5, groups=groups))
        frequency = (sizes > lam * 30 / 4).mean(1)
        error = 4 * np.sqrt(bound * (1 - bound) / 20_000)
        assert (frequency <= bound + error).all()
    assert bound.max() < 0.2, "the last bounds say something"


def orthogonal_design(num_tasks, num_rows, num_features):
    """Features of size one that are orthogonal in every task, so that kappa^2 = 1 / s*."""
    return np.broadcast_to(
        linalg.hadamard(num_rows)[:, 1 : num_features + 1], (num_tasks, num_rows, num_features)
    )


def test_recovery_is_as_frequent_as_promised():
    """2,000 data sets: Meta-KGL with the theorem's lam finds J* at least as often as both bounds say."""
    num_tasks, num_rows, num_features, noise_std = 3, 16, 6, 0.025
    design = jnp.asarray(orthogonal_design(num_tasks, num_rows, num_features), float)
    kappa = theory.kappa_lower(design, 1)
    np.testing.assert_allclose(kappa, 1, rtol=1e-6)
    numbers = dict(beta_min=1.0, omega=0.5, kappa=kappa)
    lam = theory.theorem_lam(num_tasks, **numbers)
    coef = jnp.zeros((num_tasks, num_features)).at[:, 2].set(jnp.asarray([1.0, -1.0, 1.0]))
    truth = jnp.arange(num_features) == 2

    def found(key):
        noise = noise_std * jax.random.normal(key, (num_tasks, num_rows))
        targets = jnp.einsum("srf,sf->sr", design, coef) + noise
        solution = jlibo.group_lasso(design, targets, lam, tol=1e-6)
        return ((solution.group_norms > 0.5 * num_tasks**0.5) == truth).all()

    rate = jax.jit(jax.vmap(found))(jax.random.split(jax.random.key(0), 2000)).mean()
    worst = theory.recovery_probability(num_rows, num_tasks, num_features, **numbers, noise_std=noise_std)
    own = theory.design_recovery_probability(design, **numbers, noise_std=noise_std)
    assert 0 < worst <= own + 1e-9 < 1
    assert rate >= own


def test_own_design_gives_at_least_the_worst_case():
    features = jlibo.Cosine(5)
    design = features(jlibo.sample_box(features, 4 * 300, key=jax.random.key(2))).reshape(4, 300, 5)
    for noise_std, kappa in itertools.product((0.003, 0.01, 0.02), (0.2, 0.5)):
        numbers = dict(beta_min=1.0, omega=0.5, kappa=kappa, noise_std=noise_std)
        worst = theory.recovery_probability(300, 4, 5, **numbers)
        assert theory.design_recovery_probability(design, **numbers) >= worst - 1e-9
    # With features of mean square 1/2 the traces are half of the worst case: here only the design says
    # something.
    numbers = dict(beta_min=1.0, omega=0.5, kappa=0.5, noise_std=0.045)
    assert theory.recovery_probability(300, 4, 5, **numbers) == 0
    assert theory.design_recovery_probability(design, **numbers) > 0


def test_larger_lam_has_no_guarantee():
    design = jnp.asarray(orthogonal_design(2, 16, 3), float)
    numbers = dict(beta_min=1.0, omega=0.5, kappa=1.0, noise_std=0.02)
    lam = theory.theorem_lam(2, beta_min=1.0, omega=0.5, kappa=1.0)
    assert theory.design_recovery_probability(design, **numbers, lam=lam) > 0
    assert theory.design_recovery_probability(design, **numbers, lam=1.01 * lam) == 0


def test_functions_are_jittable_and_vmappable():
    rows = jnp.asarray([100.0, 400.0, 900.0])
    got = jax.jit(jax.vmap(lambda n: theory.recovery_probability(n, 5, 20, **NUMBERS)))(rows)
    np.testing.assert_allclose(got, theory.recovery_probability(rows, 5, 20, **NUMBERS), rtol=1e-12)
    designs = jnp.asarray(np.random.default_rng(0).normal(size=(4, 2, 6, 3)))
    got = jax.jit(jax.vmap(lambda design: theory.design_failure(design, 0.5, 0.1)))(designs)
    np.testing.assert_allclose(got[1], theory.design_failure(designs[1], 0.5, 0.1), rtol=1e-9)


def test_unknown_reading_is_refused():
    with pytest.raises(ValueError, match="reading"):
        probability(reading="draft")


# --- the vote -----------------------------------------------------------------------------------------------


def test_exact_vote_equals_the_binomial_tail():
    for num_clients, alpha in itertools.product((1, 4, 20, 21), (0.1, 0.25, 0.5, 0.75, 1.0)):
        votes = int(np.ceil(alpha * num_clients - 1e-9))
        needed = max(votes, num_clients - votes + 1)
        got = theory.exact_vote_probability(jnp.full(num_clients, 0.8), alpha)
        np.testing.assert_allclose(got, stats.binom.sf(needed - 1, num_clients, 0.8), atol=1e-12)
    assert theory.exact_vote_probability(jnp.full(5, 0.99), 0.0) == 0


def test_vote_of_clients_that_err_in_the_worst_way():
    """4,000 votes in which wrong clients select the complement: the vote is right as often as promised."""
    rng, truth = np.random.default_rng(0), np.array([True, False, True])
    for num_clients, alpha in ((10, 0.5), (20, 0.25), (25, 0.4)):
        v = rng.uniform(0.7, 0.95, num_clients)
        right = rng.random((4000, num_clients)) < v
        counts = np.where(truth, right.sum(1)[:, None], (~right).sum(1)[:, None])
        voted = jlibo.meta.federated.server_vote(
            jnp.asarray(counts), jnp.asarray(num_clients), jnp.asarray(alpha)
        )
        rate = (np.asarray(voted) == truth).all(1).mean()
        exact = theory.exact_vote_probability(jnp.asarray(v), alpha)
        assert rate >= exact - 4 * np.sqrt(0.25 / 4000)
        assert theory.vote_probability(jnp.asarray(v), alpha) <= exact + 1e-9


def test_exponent_is_the_divergence_and_the_printed_one_is_too_large():
    v, share = 0.99, 0.75
    expected = share * np.log(share / v) + (1 - share) * np.log((1 - share) / (1 - v))
    np.testing.assert_allclose(theory.vote_exponent(v, 0.25), expected, rtol=1e-9)
    assert theory.vote_exponent(v, 0.5, reading="printed") > theory.vote_exponent(v, 0.5)
    # With 10 clients that are right with probability .9, the printed lemma promises more than the exact
    # tail.
    clients = jnp.full(10, 0.9)
    assert theory.vote_probability(clients, 0.5, reading="printed") > theory.exact_vote_probability(
        clients, 0.5
    )
    assert theory.vote_exponent(0.7, 0.25) == 0


def test_alpha_bar_must_be_the_maximum():
    """At alpha = .25, 30 % of right clients exceed the printed minimum, and the vote is always wrong."""
    clients = jnp.full(2000, 0.3)
    assert theory.vote_probability(clients, 0.25, reading="printed", num_kernels=50) > 0
    assert theory.exact_vote_probability(clients, 0.25) < 1e-6
    assert theory.correct_share(0.25) == 0.75 and theory.correct_share(0.25, reading="printed") == 0.25


def test_vote_is_monotone_and_converges():
    exact = [theory.exact_vote_probability(jnp.full(21, v), 0.5) for v in (0.6, 0.7, 0.8, 1.0)]
    assert exact == sorted(exact) and exact[-1] == 1
    bounds = [theory.vote_probability(jnp.full(m, 0.8), 0.5) for m in (1, 10, 100, 1000)]
    assert bounds == sorted(bounds) and bounds[-1] > 1 - 1e-9
    needed = theory.signal_needed_by_clients(50, 0.25)
    v = 1 - 50 * np.exp(-((needed - 1) ** 2) / 2)
    np.testing.assert_allclose(v, 0.75, rtol=1e-6)
