"""The election after each vote: from exact or noisy counts to the support. Internal.

| mechanism  | what is drawn and stored with vote s        | the number of votes that decides               |
|------------|---------------------------------------------|------------------------------------------------|
| `none`     | nothing                                     | the exact counts                               |
| `toeplitz` | (C x + z)_s, noise in it                    | the sum over i <= s of c_(s-i) (C x + z)_i     |
| `gnmax`    | the counts with noise of this release       | the same                                       |
| `local`    | nothing: the votes themselves are random    | (counts - s q) / (1 - 2 q)                     |

The stored numbers are private, so everything computed from them may be published.
"""

import sqlite3
from typing import final

import numpy as np
from jaxtyping import Float64

from jlibo.federated.ballot_format import VoteRow, read_votes
from jlibo.federated.randomness import with_noise
from jlibo.federated.rules import BallotRules
from jlibo.meta.federated import server_vote
from jlibo.privacy.calibration import flip_probability, gnmax_scale, toeplitz_scale, toeplitz_weights
from jlibo.privacy.local import unbiased_counts


@final
class Tally:
    """The votes of a ballot in memory, in step with its file. Rows never change: each is read once."""

    def __init__(self, rules: BallotRules):
        self._rules = rules
        self._votes = _Rows(rules.num_kernels)
        self._noisy = _Rows(rules.num_kernels)
        self._last_task = ""
        limits = dict(max_selected=rules.max_selected, horizon=rules.horizon, votes=rules.max_votes)
        self._scale = 0.0
        if rules.epsilon is not None and rules.delta is not None:
            scale_fn = toeplitz_scale if rules.mechanism == "toeplitz" else gnmax_scale
            self._scale = scale_fn(rules.epsilon, rules.delta, neighbours=rules.neighbours, **limits)
        self._weights = toeplitz_weights(rules.horizon) if rules.mechanism == "toeplitz" else np.ones(1)

    def refresh(self, database: sqlite3.Connection) -> int:
        """Read the votes that are new in the file, and return the number of votes."""
        known = len(self._votes)
        rows = read_votes(database, self._rules, "number >= ?", known)
        if known and not (rows and rows[0].task == self._last_task):  # another file was put in its place
            self._votes, self._noisy = _Rows(self._rules.num_kernels), _Rows(self._rules.num_kernels)
            rows, known = read_votes(database, self._rules), 0
        for row in rows[1 if known else 0 :]:
            self._add(row)
        return len(self._votes)

    def _add(self, row: VoteRow) -> None:
        self._votes.append(_as_bits(row.selected, self._rules.num_kernels))
        if row.noisy is not None:
            self._noisy.append(np.asarray(row.noisy))
        self._last_task = row.task

    def elect(self, selected: tuple[int, ...]) -> tuple[tuple[float, ...] | None, tuple[int, ...]]:
        """Return what is drawn for one more vote, and the support after it. The tally is not changed."""
        rules, num_votes = self._rules, len(self._votes) + 1
        votes = np.vstack([self._votes.rows, _as_bits(selected, rules.num_kernels)])
        drawn = self._draw(votes)
        noisy = self._noisy.rows if drawn is None else np.vstack([self._noisy.rows, drawn])
        elected = server_vote(self._estimates(votes, noisy), num_votes, rules.alpha)
        support = tuple(np.flatnonzero(elected).tolist())
        return None if drawn is None else tuple(drawn.tolist()), support

    def estimates(self) -> tuple[float, ...]:
        """Return the number of votes for each kernel that decided the last election."""
        return tuple(self._estimates(self._votes.rows, self._noisy.rows).tolist())

    def _draw(self, votes: np.ndarray) -> np.ndarray | None:
        """Return the row of noisy numbers of the last of these votes; None if the mechanism has no noise."""
        if self._rules.mechanism == "toeplitz":
            return with_noise(self._convolved(votes), self._scale)
        if self._rules.mechanism == "gnmax":
            return with_noise(votes.sum(0), self._scale)
        return None

    def _estimates(self, votes: np.ndarray, noisy: np.ndarray) -> Float64[np.ndarray, " kernels"]:
        rules = self._rules
        if rules.mechanism == "toeplitz":
            return self._convolved(noisy)
        if rules.mechanism == "gnmax":
            return noisy[-1] if len(noisy) else np.zeros(rules.num_kernels)
        counts = votes.sum(0)
        if rules.mechanism == "local":
            assert rules.epsilon is not None  # the rules were checked
            flip = flip_probability(rules.epsilon, max_selected=rules.max_selected)
            return unbiased_counts(counts, len(votes), flip)
        return counts

    def _convolved(self, rows: np.ndarray) -> np.ndarray:
        """Return row s of C times these s rows."""
        return self._weights[: len(rows)][::-1] @ rows


@final
class _Rows:
    """A matrix to which rows are appended."""

    def __init__(self, num_columns: int):
        self._room, self._length = np.zeros((8, num_columns)), 0

    def __len__(self) -> int:
        return self._length

    @property
    def rows(self) -> np.ndarray:
        return self._room[: self._length]

    def append(self, row: np.ndarray) -> None:
        if self._length == len(self._room):
            self._room = np.concatenate([self._room, np.zeros_like(self._room)])
        self._room[self._length] = row
        self._length += 1


def _as_bits(selected: tuple[int, ...], num_kernels: int) -> np.ndarray:
    bits = np.zeros(num_kernels)
    bits[list(selected)] = 1
    return bits
