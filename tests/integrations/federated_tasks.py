"""Finished tasks of federated clients, and the votes that the core makes of them without any engine."""

from pathlib import Path

import numpy as np

import jlibo
from jlibo.federated import BallotFile, BallotRules, Vote
from jlibo.tune import federated

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
