"""Finished tasks of federated clients, and the votes that the core makes of them without any engine."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

import jlibo
from jlibo.federated import BallotFile, BallotRules, Vote
from jlibo.solver.group_lasso import lambda_max
from jlibo.tune import federated
from jlibo.tune.model import make_model

SPACE = jlibo.SearchSpace(
    param_rate=jlibo.Float(1e-4, 1, log=True),
    param_depth=jlibo.Float(1, 9),
    param_width=jlibo.Float(0, 1),
    param_decay=jlibo.Float(0, 1),
)
NUM_TRIALS = 40


def add_tasks(memory: Path, client: int, first: int, count: int) -> None:
    """Add finished tasks to a memory: scores depend on two parameters, and in some tasks on a third."""
    with jlibo.Tuner(SPACE, memory=memory, mode="federated", seed=client) as tuner:
        for number in range(first, first + count):
            rng = np.random.default_rng((client, number))
            centre, slope = rng.uniform(1, 8), rng.uniform(0.5, 2)
            configs = [SPACE.from_unit(point) for point in SPACE.sample_unit(NUM_TRIALS, rng=rng)]
            extra = str(rng.choice(["param_width", "param_decay"]))
            share = float(rng.choice([0.0, 3.0]))
            scores = [
                -slope * np.log10(one["param_rate"])
                - (one["param_depth"] - centre) ** 2 / 8
                + share * one[extra]
                for one in configs
            ]
            tuner.add_task(f"private-name-{client}-{number}", configs, scores)


def rules(**changes) -> BallotRules:
    return BallotRules(
        **{
            "num_kernels": num_kernels(),
            "alpha": 0.4,
            "horizon": 1000,
            "num_explore": 4,
            "quorum": 5,
            "max_votes": 300,
        }
        | changes
    )


def num_kernels() -> int:
    return federated.num_kernels(SPACE)


def votes_of(memory: Path) -> list[Vote]:
    """Return the unconfirmed votes of a memory."""
    return federated.new_votes(memory, limit=1000)


def elected(memories: dict[str, Path]) -> BallotFile:
    """Return the ballot of a server that has all votes of the memories, in the process that asks."""
    ballot = BallotFile.open(None, rules())
    for client, memory in memories.items():
        ballot.receive(client, votes_of(memory))
    return ballot


def simulated(memories: dict[str, Path]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return counts and support of the simulator's F-Meta-KGL, whose clients are the memories' tasks."""
    settings, model = jlibo.tune.ClientSettings(), make_model(SPACE, mode="federated")
    sizes = model.sizes(1, NUM_TRIALS)
    ballot = None
    for memory in memories.values():
        with jlibo.tune.Memory.open_existing(memory) as opened:
            tasks = [opened.trials(task.id) for task in opened.tasks()]
        for trials in tasks:
            features = model.features(jnp.asarray([SPACE.to_unit(trial.params) for trial in trials]))
            scores = np.asarray([trial.score for trial in trials])
            rewards = jnp.asarray((scores - scores.mean()) / scores.std())
            largest = lambda_max(features[None], rewards[None], groups=sizes.groups)
            learner = jlibo.FederatedMetaKGL(
                lam=settings.lam_share * largest, omega=settings.omega, alpha=rules().alpha, data="all"
            )
            data = jlibo.TaskData(features, rewards, explored=jnp.zeros(len(trials), bool))
            ballot, _ = learner.update(learner.init(sizes) if ballot is None else ballot, data, sizes)
    assert ballot is not None
    return tuple(ballot.counts.tolist()), tuple(np.flatnonzero(ballot.support).tolist())
