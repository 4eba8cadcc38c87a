"""The lifelong theorems against thousands of simulated runs: they fail no more often than delta allows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo import theory

FEATURES = jlibo.Cosine(4)
NUM_TASKS, HORIZON, ROWS, SEEDS = 4, 100, 80, 2000
NOISE, DELTA, NORM, KAPPA = 0.004, 0.1, 2.0, 0.45
NUMBERS = dict(beta_min=1.0, omega=0.5, kappa=KAPPA, noise_std=NOISE)


def simulated(learner):
    """Regret, and whether the support was right after each task, in the runs with an informative design."""
    schedule = jlibo.ConstantExploration(scale=ROWS / HORIZON**0.5)

    def one(key):
        env = jlibo.SyntheticEnv.draw(
            FEATURES,
            support_size=1,
            norm_bound=NORM,
            beta_min=1.0,
            noise_std=NOISE,
            candidates=jlibo.box_midpoints(FEATURES, 64),
            key=key,
        )
        policy = jlibo.GPUCB(nu=2.0, noise_std=(1 + 2 / HORIZON) ** 0.5)
        result = jlibo.run_lifelong(
            env,
            FEATURES,
            policy,
            learner,
            num_tasks=NUM_TASKS,
            horizon=HORIZON,
            exploration=schedule,
            key=key,
        )
        design = env.candidate_features[result.actions[:, :ROWS]]
        kappas = jnp.stack([theory.kappa_lower(design[: s + 1], 1) for s in range(NUM_TASKS)])
        alone = jax.vmap(lambda rows: theory.kappa_lower(rows[None], 1))(design)
        right = (result.support == env.support).all(1)
        return result.regret.sum(), right, jnp.minimum(kappas.min(), alone.min())

    keys = jax.random.split(jax.random.key(0), SEEDS)
    regret, right, kappa = map(np.asarray, jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=50))(keys))
    informative = kappa >= KAPPA
    assert informative.sum() > SEEDS / 4, "the assumption holds in enough runs"
    return regret[informative], right[informative]


def task_regret():
    norm = theory.kernel_norm(NORM, 1)
    return theory.gp_ucb_regret(
        HORIZON, 1, norm_bound=norm, noise_std=NOISE, delta=DELTA / 2, num_tasks=NUM_TASKS
    )


@pytest.mark.slow
def test_theorem_of_libo_holds_as_often_as_promised():
    counts = np.full(NUM_TASKS, float(ROWS))
    bound = theory.lifelong_regret_bound(
        counts, HORIZON, 4, **NUMBERS, norm_bound=NORM, delta=DELTA, task_regret=task_regret(), method="sum"
    )
    assert bound.reached and bound.wrong_tasks < NUM_TASKS, "the theorem says something at these numbers"
    lam = theory.theorem_lam(1, beta_min=1.0, omega=0.5, kappa=KAPPA)
    regret, right = simulated(jlibo.MetaKGL(lam, 0.5, lam_scaling="sqrt"))
    assert (regret > bound.total).mean() <= DELTA
    assert (~right[:, int(bound.wrong_tasks) - 1 :].all(1)).mean() <= DELTA
    failures = np.asarray(theory.failure_by_task(counts, 4, **NUMBERS))
    assert ((~right).mean(0) <= failures + 1e-9).all()


@pytest.mark.slow
def test_theorem_of_f_libo_holds_as_often_as_promised():
    client = theory.recovery_probability(ROWS, 1, 4, **NUMBERS)
    assert 0.9 < client < 1, "the theorem says something at these numbers"
    lam = theory.theorem_lam(1, beta_min=1.0, omega=0.5, kappa=KAPPA)
    regret, right = simulated(jlibo.FederatedMetaKGL(lam, 0.5, 0.5))
    bound = theory.federated_regret_bound(
        NUM_TASKS,
        ROWS,
        HORIZON,
        4,
        alpha=0.5,
        **NUMBERS,
        norm_bound=NORM,
        delta=DELTA,
        task_regret=task_regret(),
    )
    assert (regret > bound.total).mean() <= DELTA
    for num_clients in range(1, NUM_TASKS + 1):
        promised = theory.exact_vote_probability(jnp.full(num_clients, client), 0.5)
        assert right[:, num_clients - 1].mean() >= promised
