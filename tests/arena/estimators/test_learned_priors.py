"""ABLR, PACOH, F-PACOH and ALPaCA with given features: derivatives, optima and the chain rule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo.arena.estimators import (
    DiagonalPrior,
    Gaussian,
    HyperPrior,
    TaskRows,
    TaskStatistics,
    fit_diagonal_prior,
    fit_gaussian,
    fit_predictive_prior,
    held_out_loss,
    log_marginal,
    objective_slope,
    one_step_losses,
    predictive_losses,
    statistics_of,
    total_log_marginal,
)
from jlibo.arena.estimators.gaussian import factor_of, if_finite
from jlibo.arena.estimators.marginal_likelihood import functional_divergence
from tests.arena.estimators.references import draw_tasks, gaussian_posterior, random_covariance

SIZE, NOISE = 4, 0.3**2
GROUPS = (0, 0, 1, 1)


def close(got, want, tol=1e-8):
    np.testing.assert_allclose(got, want, rtol=tol, atol=tol)


def stats_of(draw):
    return statistics_of(draw.features, draw.rewards)


def rows_of(draw):
    return TaskRows(jnp.asarray(draw.features), jnp.asarray(draw.rewards), jnp.ones(draw.rewards.shape, bool))


def some_prior():
    return DiagonalPrior(jnp.arange(4.0) / 4, jnp.asarray([0.3, -0.5]))


def on_functions(num_points=6, weight=0.1):
    points = np.random.default_rng(3).normal(size=(num_points, SIZE))
    return HyperPrior.on_functions(points, 4 * random_covariance(num_points), weight)


def objective(prior, stats, hyper):
    """The objective of the module's table, in plain terms."""
    belief = prior.belief(GROUPS)
    marginals = jax.vmap(log_marginal, in_axes=(None, 0, None))(belief, stats, NOISE)
    value = -0.5 * hyper.mean_precision * (prior.mean**2).sum()
    value -= 0.5 * hyper.scale_precision * (prior.log_variance**2).sum()
    if not len(hyper.points):
        return value + marginals.sum()
    rate = 1 / jnp.sqrt(stats.num_tasks) + 1 / (stats.num_tasks * stats.count)
    variance = jnp.diagonal(belief.covariance)
    divergence = functional_divergence(prior.mean, variance, hyper)
    return value + (marginals / stats.count - hyper.weight * rate * divergence).sum()


HYPERS = {
    "ABLR": HyperPrior.none(SIZE),
    "PACOH": HyperPrior.none(SIZE, 2.0, 0.5),
    "F-PACOH": on_functions(),
}


@pytest.mark.parametrize("name", HYPERS)
def test_slope_is_the_derivative_of_the_objective(name):
    stats = stats_of(draw_tasks(5, 6, SIZE, mean=1.0))
    want = jax.grad(objective)(some_prior(), stats, HYPERS[name])
    got = objective_slope(some_prior(), stats, NOISE, HYPERS[name], GROUPS)
    close(got.mean, want.mean)
    close(got.log_variance, want.log_variance)


@pytest.mark.parametrize("name", HYPERS)
def test_fit_is_stationary(name):
    stats = stats_of(draw_tasks(20, 6, SIZE, mean=1.0))
    start = DiagonalPrior(jnp.zeros(SIZE), jnp.zeros(2))
    fit = jax.jit(
        lambda hyper: fit_diagonal_prior(stats, start, NOISE, hyper=hyper, groups=GROUPS, num_steps=1500)
    )
    found = fit(HYPERS[name])
    first = objective_slope(start, stats, NOISE, HYPERS[name], GROUPS)
    last = objective_slope(found, stats, NOISE, HYPERS[name], GROUPS)
    for before, after in ((first.mean, last.mean), (first.log_variance, last.log_variance)):
        assert np.abs(after).max() < 1e-4 * np.abs(before).max()


def test_ablr_and_em_have_the_same_optimum():
    """One precision per group with mean zero: gradient ascent and EM maximise the same likelihood."""
    stats = stats_of(draw_tasks(20, 6, SIZE))
    for groups in ((0, 0, 0, 0), GROUPS, tuple(range(SIZE))):
        start = DiagonalPrior(jnp.zeros(SIZE), jnp.zeros(max(groups) + 1))
        fit = fit_diagonal_prior(stats, start, NOISE, groups=groups, learn_mean=False, num_steps=1500)
        em = fit_gaussian(
            stats,
            Gaussian(jnp.zeros(SIZE), jnp.eye(SIZE)),
            NOISE,
            num_steps=300,
            structure="groups",
            groups=groups,
            learn_mean=False,
        )
        close(fit.belief(groups).covariance, em.covariance, 1e-5)
        close(fit.mean, np.zeros(SIZE))


def test_pacoh_with_a_flat_hyper_prior_is_em():
    stats = stats_of(draw_tasks(20, 6, SIZE, mean=1.0))
    start = DiagonalPrior(jnp.zeros(SIZE), jnp.zeros(SIZE))
    fit = fit_diagonal_prior(stats, start, NOISE, num_steps=3000)
    em = fit_gaussian(
        stats, Gaussian(jnp.zeros(SIZE), jnp.eye(SIZE)), NOISE, num_steps=500, structure="groups"
    )
    close(fit.mean, em.mean, 1e-5)
    close(fit.belief(tuple(range(SIZE))).covariance, em.covariance, 1e-5)


def test_divergence_is_that_of_dense_gaussians():
    hyper, prior = on_functions(), some_prior()
    variance = np.exp(np.asarray(prior.log_variance))[np.asarray(GROUPS)]
    points = np.asarray(hyper.points)
    own = points @ np.diag(variance) @ points.T + 1e-3 * np.eye(6)
    theirs = 4 * random_covariance(6) + 1e-3 * np.eye(6)
    inverse, away = np.linalg.inv(theirs), points @ np.asarray(prior.mean)
    want = np.trace(inverse @ own) + away @ inverse @ away - 6
    want += np.linalg.slogdet(theirs)[1] - np.linalg.slogdet(own)[1]
    close(functional_divergence(prior.mean, jnp.asarray(variance), hyper), want / 2)
    # The divergence from a hyper-prior that is the prior itself is zero.
    same = HyperPrior.on_functions(points, points @ np.diag(variance) @ points.T, 0.1)
    close(functional_divergence(jnp.zeros(SIZE), jnp.asarray(variance), same), 0)


def test_functions_stay_wide_where_no_task_looked():
    """F-PACOH keeps the variance of a feature that no task has seen at that of the hyper-prior."""
    features = np.random.default_rng(0).normal(size=(10, 6, 2)) * [1.0, 0.0]
    stats = statistics_of(features, features[..., 0])
    hyper = HyperPrior.on_functions(np.eye(2), 4 * np.eye(2), 0.1)
    start = DiagonalPrior(jnp.zeros(2), jnp.zeros(2))
    fit = fit_diagonal_prior(stats, start, NOISE, hyper=hyper, num_steps=2000)
    np.testing.assert_allclose(np.exp(fit.log_variance[1]), 4.0, rtol=1e-3)
    assert np.exp(fit.log_variance[0]) < 1.0


def test_one_step_losses_add_up_to_the_marginal_likelihood():
    draw = draw_tasks(1, 7, SIZE)
    belief = Gaussian(jnp.arange(4.0), factor_of(jnp.asarray(random_covariance(SIZE))))
    losses = one_step_losses(belief, draw.features[0], draw.rewards[0], NOISE)
    stats = statistics_of(draw.features[0], draw.rewards[0])
    close(losses.sum(), -2 * log_marginal(belief, stats, NOISE) - 7 * np.log(2 * np.pi))
    first = predictive_losses(belief, jnp.asarray(draw.features[0]), jnp.asarray(draw.rewards[0]), NOISE)
    close(losses[0], first[0])  # without a context, the prior predictive


def test_held_out_loss_is_that_of_the_posterior():
    draw, length = draw_tasks(3, 6, SIZE), 2
    mean, covariance = np.arange(4.0), random_covariance(SIZE)
    belief = Gaussian(jnp.asarray(mean), factor_of(jnp.asarray(covariance)))

    def of(length):
        values = []
        for rows, rewards in zip(draw.features, draw.rewards, strict=True):
            m, c = (mean, covariance)
            if length:
                m, c = gaussian_posterior(mean, covariance, rows[:length], rewards[:length], NOISE)
            variance = np.einsum("rf,fg,rg->r", rows[length:], c, rows[length:]) + NOISE
            values.append(np.mean(np.log(variance) + (rewards[length:] - rows[length:] @ m) ** 2 / variance))
        return np.mean(values)

    close(held_out_loss(belief, rows_of(draw), NOISE, num_contexts=3), np.mean([of(0), of(length), of(5)]))


def test_predictive_fit_decreases_its_loss_and_ignores_absent_rows():
    draw = draw_tasks(10, 6, SIZE, mean=2.0)
    rows, start = rows_of(draw), Gaussian(jnp.zeros(SIZE), jnp.eye(SIZE))
    fit = jax.jit(lambda rows: fit_predictive_prior(rows, start, NOISE, num_steps=60))
    found = fit(rows)
    assert float(held_out_loss(found, rows, NOISE)) < float(held_out_loss(start, rows, NOISE))
    more = zip(rows, (jnp.nan, jnp.nan, False), strict=True)
    padded = TaskRows(*(jnp.concatenate([leaf, jnp.full_like(leaf[:2], value)]) for leaf, value in more))
    again = jax.jit(lambda rows: fit_predictive_prior(rows, start, NOISE, num_steps=60))(padded)
    close(again.mean, found.mean)
    nothing = fit(TaskRows(rows.features, rows.rewards, jnp.zeros_like(rows.present)))
    close(nothing.factor, np.eye(SIZE))


def test_predictive_fit_takes_tasks_in_turn():
    draw = draw_tasks(6, 6, SIZE, mean=2.0)
    rows, start = rows_of(draw), Gaussian(jnp.zeros(SIZE), jnp.eye(SIZE))

    def fit(rows, batch_size, num_steps=40):
        return fit_predictive_prior(rows, start, NOISE, batch_size=batch_size, num_steps=num_steps)

    whole = fit(rows, None)
    close(fit(rows, 6).factor, whole.factor)
    close(fit(rows, 9).factor, whole.factor)
    # Absent tasks have no turn, wherever they are.
    present = np.array([True, False, True, False, True, True])
    some = rows._replace(present=rows.present & present[:, None])
    alone = jax.tree.map(lambda leaf: leaf[present], rows)
    close(fit(some, 3).mean, fit(alone, 3).mean)
    close(fit(some, 5).mean, fit(alone, None).mean)
    # One step of the first three tasks is the step of a fit to them.
    first = jax.tree.map(lambda leaf: leaf[:3], rows)
    close(fit(rows, 3, 1).mean, fit(first, None, 1).mean)
    assert float(held_out_loss(fit(rows, 2), rows, NOISE)) < float(held_out_loss(start, rows, NOISE))
    with pytest.raises(ValueError, match="`batch_size` should be"):
        fit(rows, 0)


def test_predictive_fit_stays_finite_in_single_precision():
    """Large steps make the belief so wide that posteriors are singular in single precision."""
    features = jlibo.Cosine(50)(np.random.default_rng(0).uniform(size=(2, 100, 1)))
    rows = TaskRows(
        jnp.asarray(1.4 * features, jnp.float32),
        jnp.asarray(10 * features[..., 3], jnp.float32),
        jnp.ones((2, 100), bool),
    )
    start = Gaussian(jnp.zeros(50, jnp.float32), jnp.eye(50, dtype=jnp.float32))
    fit = jax.jit(lambda rate: fit_predictive_prior(rows, start, 0.01, num_steps=30, learning_rate=rate))
    assert np.isfinite(fit(0.3).factor).all()
    assert not np.array_equal(fit(0.3).factor, start.factor)


def test_a_step_along_a_slope_that_is_not_finite_is_not_taken():
    new, old = {"a": jnp.ones(2), "b": jnp.ones(())}, {"a": jnp.zeros(2), "b": jnp.zeros(())}
    for slope, want in (
        (jnp.ones(2), new),
        (jnp.asarray([1.0, jnp.nan]), old),
        (jnp.asarray([jnp.inf]), old),
    ):
        jax.tree.map(np.testing.assert_array_equal, if_finite((slope, jnp.zeros(())), new, old), want)


def test_many_tasks_teach_the_same_prior_by_prediction_and_by_likelihood():
    """Well-specified Gaussian tasks: both estimates approach the mean of tasks."""
    draw = draw_tasks(200, 6, 2, mean=1.5, noise_std=0.3)
    start = Gaussian(jnp.zeros(2), jnp.eye(2))
    likely = fit_gaussian(stats_of(draw), start, NOISE, num_steps=50)
    found = fit_predictive_prior(rows_of(draw), start, NOISE, num_steps=300)
    np.testing.assert_allclose(found.mean, likely.mean, atol=0.1)
    np.testing.assert_allclose(found.covariance, likely.covariance, atol=0.35)
    before, after = (total_log_marginal(belief, stats_of(draw), NOISE) for belief in (start, found))
    assert float(after - before) > 10


def test_absent_tasks_and_batches():
    stats = stats_of(draw_tasks(5, 6, SIZE))
    start = DiagonalPrior(jnp.zeros(SIZE), jnp.zeros(SIZE))

    def fit(stats):
        return fit_diagonal_prior(stats, start, NOISE, hyper=on_functions(), num_steps=20).mean

    padded = jax.tree.map(lambda leaf: jnp.concatenate([leaf, jnp.zeros_like(leaf[:2])]), stats)
    close(fit(padded), fit(stats))
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, jnp.zeros_like(leaf)]), stats)
    both = jax.vmap(fit)(batch)
    close(both[0], fit(stats))
    close(both[1], np.zeros(SIZE))
    with pytest.raises(ValueError, match=r"`start\.log_variance` should be"):
        fit_diagonal_prior(TaskStatistics.empty(2, SIZE), start, NOISE, groups=GROUPS)
