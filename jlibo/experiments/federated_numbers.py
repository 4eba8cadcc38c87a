"""Numbers of `federated-private` and `federated-attack`: elections among hundreds or thousands of clients.

With `data="exploration"` a client's vote depends on its own forced exploration alone, and not on earlier
elections. The votes of all clients are therefore computed in one batch, by the `client_step` of the agents,
on the tasks of the experiment's seeds. One more task is then played with what each election yields.

| here       | what it is                                                                                  |
|------------|---------------------------------------------------------------------------------------------|
| `votes_of` | the selections of many clients, each from its own exploration data                          |
| `elected`  | kernels by the noisy counts of the last release; noise calibrated for as many releases      |
| `jaccard`  | size of the intersection of the elected set and J*, over that of their union                |
"""

from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jlibo.belief.prior import support_prior
from jlibo.envs import AbstractEnv
from jlibo.experiments.coverage_numbers import mean_and_error
from jlibo.features import AbstractFeatures
from jlibo.lifelong.one_task import draw_task, run_task
from jlibo.meta import FederatedMetaKGL, RunSizes, TaskData
from jlibo.meta.federated import client_step, server_vote
from jlibo.meta.rows import rows_of
from jlibo.policies import AbstractPolicy
from jlibo.privacy.calibration import flip_probability, gnmax_scale, toeplitz_norm, toeplitz_scale
from jlibo.privacy.local import unbiased_counts

CLIENTS = (20, 49, 100, 300, 1000)
"""Numbers of clients in `federated-private`."""
EPSILONS = (1.0, 4.0, 8.0)
"""Values of epsilon in `federated-private`."""
DELTA = 1e-5
"""Probability with which epsilon may fail."""
MOST_SELECTED = 10
"""Largest number of kernels in a vote."""
NUM_DRAWS = 20
"""Draws of the noise for each seed."""
MECHANISMS = ("toeplitz", "gnmax", "local")

ALPHAS = (0.2, 0.25, 0.3, 0.4)
"""Shares of votes in `federated-attack`."""
COLLUDING = (0.0, 0.05, 0.1, 0.2)
"""Shares of colluding voters in `federated-attack`."""
ATTACKED_CLIENTS = 1000
"""Number of clients in `federated-attack`."""

_BATCH = 250


@final
class Electorate(NamedTuple):
    """The votes of one seed, and what is needed to play one more task."""

    votes: Bool[np.ndarray, "clients groups"]
    truth: Bool[np.ndarray, " groups"]


@eqx.filter_jit
def votes_of(
    env: AbstractEnv,
    features: AbstractFeatures,
    learner: FederatedMetaKGL,
    num_clients: int,
    num_rows: int,
    *,
    key: PRNGKeyArray,
) -> Bool[Array, "clients groups"]:
    """Return what each of `num_clients` clients selects from `num_rows` exploration steps of its own task."""
    candidate_features = features(env.candidates)
    dtype = candidate_features.dtype
    sizes = RunSizes.of(features, num_tasks=1, horizon=num_rows, max_explore=num_rows, dtype=dtype)

    def one_client(index: Array) -> Bool[Array, " groups"]:
        draws = draw_task(env, index, num_rows, key=key)
        rewards = draws.task.values[draws.exploration] + draws.noise
        data = TaskData(candidate_features[draws.exploration], rewards, jnp.ones(num_rows, bool))
        rows = rows_of(data, "exploration", sizes)
        limits: dict[str, Any] = dict(max_selected=MOST_SELECTED, tol=learner.tol)
        return client_step(rows, learner.lam, learner.omega, sizes.groups, **limits)[0]

    return jax.lax.map(one_client, jnp.arange(num_clients), batch_size=_BATCH)


def elected(
    votes: Bool[np.ndarray, "clients groups"],
    alpha: float,
    *,
    mechanism: str = "none",
    epsilon: float = 1.0,
    rng: np.random.Generator,
) -> Bool[np.ndarray, " groups"]:
    """Return the kernels that are elected after the last of these votes.

    The noise of the last release has the distribution that it has after as many releases as there are votes.
    """
    num_clients, num_groups = votes.shape
    limits: dict[str, Any] = dict(max_selected=MOST_SELECTED, horizon=num_clients)
    counts = votes.sum(0).astype(float)
    if mechanism == "toeplitz":
        std = toeplitz_scale(epsilon, DELTA, **limits) * toeplitz_norm(num_clients)
        counts = counts + std * rng.standard_normal(num_groups)
    elif mechanism == "gnmax":
        counts = counts + gnmax_scale(epsilon, DELTA, **limits) * rng.standard_normal(num_groups)
    elif mechanism == "local":
        flip = flip_probability(epsilon, max_selected=MOST_SELECTED)
        sent = votes ^ (rng.random(votes.shape) < flip)
        counts = np.asarray(unbiased_counts(sent.sum(0), num_clients, flip))
    return server_vote(counts, num_clients, alpha)


def jaccard(support: Bool[np.ndarray, " groups"], truth: Bool[np.ndarray, " groups"]) -> float:
    """Return the Jaccard index of two sets of kernels."""
    return float((support & truth).sum() / (support | truth).sum())


# --- federated-private --------------------------------------------------------------------------------------


def private(result: Any) -> dict[str, Any]:
    """Return Jaccard index and regret of one more task, by mechanism, epsilon and number of clients."""
    experiment = result.experiment
    settings = experiment.settings()
    electorates = _electorates(result, max(CLIENTS))
    alpha = settings["alpha"]
    cases = [("none", 0.0)] + [(mechanism, epsilon) for mechanism in MECHANISMS for epsilon in EPSILONS]
    index = np.zeros((len(cases), len(CLIENTS), len(electorates)))
    supports = np.zeros((*index.shape, electorates[0].votes.shape[1]), bool)
    for seed, electorate in enumerate(electorates):
        rng = np.random.default_rng(result.first_seed + seed)
        for case, (mechanism, epsilon) in enumerate(cases):
            for place, number in enumerate(CLIENTS):
                draws = [
                    elected(
                        electorate.votes[:number], alpha, mechanism=mechanism, epsilon=epsilon or 1.0, rng=rng
                    )
                    for _ in range(1 if mechanism == "none" else NUM_DRAWS)
                ]
                index[case, place, seed] = np.mean([jaccard(one, electorate.truth) for one in draws])
                supports[case, place, seed] = draws[0]
    regret = _regret_of(result, supports)
    naive = _regret_of(result, np.ones((1, 1, *supports.shape[2:]), bool))
    oracle = _regret_of(result, np.stack([one.truth for one in electorates])[None, None])
    return {
        "clients": list(CLIENTS),
        "delta": DELTA,
        "alpha": alpha,
        "votes_for_true": float(np.mean([one.votes[:, one.truth].mean() for one in electorates])),
        "votes_for_false": float(np.mean([one.votes[:, ~one.truth].mean() for one in electorates])),
        "regret_full": mean_and_error(naive[0, 0]),
        "regret_oracle": mean_and_error(oracle[0, 0]),
        "cases": [
            {
                "mechanism": mechanism,
                "epsilon": epsilon or None,
                "jaccard": [mean_and_error(one) for one in index[case]],
                "regret": [mean_and_error(one) for one in regret[case]],
            }
            for case, (mechanism, epsilon) in enumerate(cases)
        ],
    }


def _electorates(result: Any, num_clients: int) -> list[Electorate]:
    experiment = result.experiment
    horizon = experiment.settings()["horizon"]
    found = []
    for seed in range(result.first_seed, result.first_seed + result.num_seeds):
        world = experiment.make_world(key=jax.random.fold_in(jax.random.key(0), seed))
        learner = next(one for one in world.learners.values() if isinstance(one, FederatedMetaKGL))
        num_rows = int(learner.exploration.counts(1, horizon)[0])
        votes = votes_of(world.env, world.features, learner, num_clients, num_rows, key=world.key)
        found.append(Electorate(np.asarray(votes), np.asarray(world.env.support)))
    return found


def _regret_of(result: Any, supports: Bool[np.ndarray, "cases clients seeds groups"]) -> np.ndarray:
    """Return the regret of one more task of each seed, played with the prior of each support."""
    experiment = result.experiment
    horizon = experiment.settings()["horizon"]
    regrets = []
    for seed in range(supports.shape[2]):
        world = experiment.make_world(key=jax.random.fold_in(jax.random.key(0), result.first_seed + seed))
        flat = jnp.asarray(supports[:, :, seed].reshape(-1, supports.shape[-1]))
        found = _played(world.env, world.features, world.policy, flat, max(CLIENTS), horizon, key=world.key)
        regrets.append(np.asarray(found).reshape(supports.shape[:2]))
    return np.stack(regrets, axis=-1)


@eqx.filter_jit
def _played(
    env: AbstractEnv,
    features: AbstractFeatures,
    policy: AbstractPolicy,
    supports: Bool[Array, "cases groups"],
    index: int,
    horizon: int,
    *,
    key: PRNGKeyArray,
) -> Float[Array, " cases"]:
    candidate_features = features(env.candidates)
    draws = draw_task(env, jnp.asarray(index), horizon, key=key)

    def play(support: Bool[Array, " groups"]) -> Float[Array, ""]:
        prior = support_prior(support, features.groups, candidate_features.dtype)
        played = run_task(policy, prior, candidate_features, draws, jnp.zeros((), jnp.int32))
        return played.regret.sum()

    return jax.vmap(play)(supports)


# --- federated-attack ---------------------------------------------------------------------------------------


def attack(result: Any) -> dict[str, Any]:
    """Return the numbers of true and of false kernels elected, by share of colluding voters and alpha.

    The colluding clients all vote for the same false kernels, as many as a vote may have: those that honest
    clients select most often by mistake.
    """
    electorates = _electorates(result, ATTACKED_CLIENTS)
    true, false = (np.zeros((len(ALPHAS), len(COLLUDING), len(electorates))) for _ in range(2))
    rng = np.random.default_rng(0)
    for seed, (votes, truth) in enumerate(electorates):
        popular = np.argsort(-np.where(truth, -1, votes.sum(0)), kind="stable")[:MOST_SELECTED]
        for place, share in enumerate(COLLUDING):
            attacked = votes.copy()
            colluding = slice(0, round(share * len(votes)))
            attacked[colluding] = False
            attacked[colluding, popular] = True
            for row, alpha in enumerate(ALPHAS):
                support = elected(attacked, alpha, rng=rng)
                true[row, place, seed] = (support & truth).sum()
                false[row, place, seed] = (support & ~truth).sum()
    return {
        "clients": ATTACKED_CLIENTS,
        "alphas": list(ALPHAS),
        "colluding": list(COLLUDING),
        "num_true": int(electorates[0].truth.sum()),
        "true": [[mean_and_error(one) for one in row] for row in true],
        "false": [[mean_and_error(one) for one in row] for row in false],
    }
