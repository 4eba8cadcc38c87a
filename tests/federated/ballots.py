"""Ballots for tests, and a process that casts votes until it is killed."""

import sys

import numpy as np

from jlibo.federated import BallotFile, BallotRules, Vote

NUM_KERNELS = 12


def make_rules(**options):
    """Return rules of a small ballot."""
    standard = dict(num_kernels=NUM_KERNELS, alpha=0.25, horizon=1000, num_explore=5, quorum=4)
    return BallotRules(**{**standard, "max_votes": 1000, **options})


def vote(number: int, num_selected: int = 3) -> Vote:
    """Return the vote `number`, always the same."""
    selected = np.random.default_rng(number).choice(NUM_KERNELS, num_selected, replace=False)
    return Vote(f"{number:032x}", tuple(sorted(selected.tolist())))


def cast_for_ever(path: str, client: str, first: int) -> None:
    """Cast the votes from `first` on and print the number of each when it is on the disk."""
    with BallotFile.open_existing(path) as ballot:
        for number in range(first, first + 10_000):
            assert ballot.cast(client, vote(number)) in ("counted", "repeated")
            print(number, flush=True)


if __name__ == "__main__":
    cast_for_ever(sys.argv[1], sys.argv[2], int(sys.argv[3]))
