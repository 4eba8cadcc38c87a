"""Published figures, and figures of the theory, that the methods reproduce. Slow: many seeds.

The cumulative regrets of the hierarchical setting are those of re-runs of the notebook published with Hong et
al. (2022), and of the exact posterior in its setting: 4 features, 20 arms on the unit sphere, noise 1, task
standard deviation 0.1, 10 tasks of 200 plays, 5 tasks a round. Each figure has a standard error of its own,
which is added to ours.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo.arena import Schedule, run_rounds
from jlibo.arena.methods import ExploreThenCommit, JointHierarchy
from jlibo.envs.linear import BallArms, GaussianWeights, LinearEnv, LowRankWeights, TaskArms

NUM_SEEDS = 200
SIZE = 4
TASK = 0.01 * np.eye(SIZE)


@eqx.filter_jit
def hierarchical_regrets(hyper_std, keys):
    """Total regret of each seed: told the mean of tasks, learning it, and learning every task alone."""

    def prior(variance):
        return jlibo.Prior(jnp.zeros(SIZE), variance * jnp.ones(SIZE))

    schedule = Schedule.shuffled(10, 200, 5)

    def totals(key):
        weights = GaussianWeights.draw(hyper_std=hyper_std, covariance=TASK, key=key)
        env = LinearEnv(weights, TaskArms(20, SIZE), noise_std=1.0)
        told = jlibo.Prior(weights.mean, jnp.zeros(SIZE))
        alone = JointHierarchy(prior(0.0), TASK + hyper_std**2 * jnp.eye(SIZE), 1.0)
        learners = JointHierarchy(told, TASK, 1.0), JointHierarchy(prior(hyper_std**2), TASK, 1.0), alone
        together = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *learners)
        run = jax.vmap(lambda learner: run_rounds(env, learner, schedule, key=key).regret.sum())
        return run(together)

    return jax.vmap(totals)(keys)


@pytest.mark.slow
@pytest.mark.parametrize(
    "hyper_std, published",
    [
        (0.5, {"oracle": (50.0, 2.0), "exact": (129.9, 1.6), "alone": (372.6, 3.4)}),
        (1.0, {"oracle": (26.1, 1.3), "exact": (89.9, 1.2), "alone": (340.5, 3.2)}),
    ],
)
def test_hierarchical_thompson_sampling(hyper_std, published):
    keys = jax.random.split(jax.random.key(0), NUM_SEEDS)
    found = np.asarray(hierarchical_regrets(jnp.asarray(hyper_std), keys))
    means, errors = found.mean(0), found.std(0, ddof=1) / np.sqrt(NUM_SEEDS)
    for mean, error, (name, (want, own_error)) in zip(means, errors, published.items(), strict=True):
        print(f"hyper_std {hyper_std}, {name}: {mean:.1f} +- {error:.1f}, published {want} +- {own_error}")
        assert abs(mean - want) < 4 * np.hypot(error, own_error), name
    assert means[0] < means[1] < means[2]


@eqx.filter_jit
def commit_regrets(learner, size, rank, num_tasks, horizon, keys):
    """Mean regret of a task, of each seed, on the unit ball."""

    def one(key):
        weights = LowRankWeights.draw(num_features=size, rank=rank, key=key)
        env = LinearEnv(weights, BallArms(1.0, size), noise_std=1.0)
        result = run_rounds(env, learner, Schedule.concurrent(num_tasks, horizon), key=key)
        return result.regret.sum() / num_tasks

    return jax.lax.map(one, keys)


@pytest.mark.slow
def test_commitment_in_a_known_subspace():
    """Regret N |theta| + (n - N) (r - 1) r sigma^2 / (2 N |theta|), where the subspace is the whole space."""
    rank, num_tasks, horizon, second = 3, 100, 2000, 134
    learner = ExploreThenCommit((1,) * num_tasks, second, rank)
    found = np.asarray(
        commit_regrets(learner, rank, rank, num_tasks, horizon, jax.random.split(jax.random.key(1), 4))
    )
    norm, inverse = 0.9, np.log(1 / 0.8) / 0.2  # means of |theta| and 1 / |theta| for |theta| in [0.8, 1]
    explore = (1 + second) * norm
    commit = (horizon - second - 1) * (rank - 1) * rank / (2 * second) * inverse
    error = found.std(ddof=1) / np.sqrt(len(found))
    print(f"known subspace: {found.mean():.1f} +- {error:.1f}, formula {explore + commit:.1f}")
    # The formula is of first order in 1 / N; the next term is below one percent.
    assert abs(found.mean() - (explore + commit)) < 4 * error + 0.01 * (explore + commit)


@pytest.mark.slow
def test_subspace_estimators_from_the_same_exploration():
    """10 features, rank 3, 100 tasks, 2000 steps, N1 = 77, N2 = 134: least squares 285, moment 617 a task."""
    size, rank, num_tasks, horizon = 10, 3, 100, 2000
    keys = jax.random.split(jax.random.key(2), 3)

    def play(estimator):
        learner = ExploreThenCommit((77,) * num_tasks, 134, rank, estimator)
        return np.asarray(commit_regrets(learner, size, rank, num_tasks, horizon, keys))

    regrets = {estimator: play(estimator) for estimator in ("least-squares", "moment")}
    print({name: (one.mean().round(1), one.std(ddof=1).round(1)) for name, one in regrets.items()})
    for name, want in (("least-squares", 285), ("moment", 617)):
        found = regrets[name]
        # Both figures are means of three repetitions, with standard errors of a similar size.
        assert abs(found.mean() - want) < 5 * np.sqrt(2 / 3) * found.std(ddof=1) + 0.02 * want, name
    assert regrets["least-squares"].max() < 551 < regrets["moment"].mean()  # 551: every task alone
