"""The rules of a ballot, which are declared before the first vote and never change."""

import dataclasses
import json
from typing import Any, final

from jlibo.checks import check_count, check_finite, check_range, fail
from jlibo.federated.messages import LARGEST_NUMBER, MAX_KERNELS
from jlibo.front_door import got, is_numeric
from jlibo.privacy.calibration import LARGEST_EPSILON, NEIGHBOURS
from jlibo.strict_json import strict_json

MECHANISMS = ("none", "toeplitz", "gnmax", "local")
"""How the vote is made private; see `BallotRules.mechanism`."""

LONGEST_PRIVATE = 10**6
"""Largest horizon of a ballot with noise, whose calibration takes memory in proportion to it."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class BallotRules:
    """The rules of a ballot.

    **Arguments:**

    - `num_kernels`: number of base kernels.
    - `alpha`: share of the votes that elects a kernel, from 0 to 1.
    - `horizon`: number of votes after which the ballot is closed and the support does not change any more.
      The noise of a private ballot is calibrated for this number of releases.
    - `quorum`: number of votes before the first election. Until then clients use all kernels: with fewer
      than 1/alpha votes, a single one elects.
    - `max_selected`: largest number of kernels in a vote.
    - `max_votes`: largest number of votes of a client.
    - `num_explore`: number of forced exploration steps of each task.
    - `mechanism`: "none" counts exactly. "toeplitz" adds the correlated noise of a square-root Toeplitz
      factorisation to the counts, "gnmax" independent noise to each release. "local" expects votes that
      clients have randomised.
    - `epsilon`: privacy of a client against all who see the releases (with "local": against all who see its
      vote, for each vote). None with "none".
    - `delta`: probability with which epsilon may fail. None with "none" and "local".
    - `neighbours`: "zero-out" hides what a client voted, replaced by empty votes; "replace-one", replaced by
      any others. "local" always hides any others.

    **Raises:** `ValueError` for a value out of range, or one that the mechanism does not use.

    ```python
    from jlibo.federated import BallotRules

    rules = BallotRules(num_kernels=20, alpha=0.25, horizon=1000, num_explore=10)
    assert rules.quorum == 10
    ```
    """

    num_kernels: int
    alpha: float
    horizon: int
    num_explore: int
    quorum: int = 10
    max_selected: int = 10
    max_votes: int = 1
    mechanism: str = "none"
    epsilon: float | None = None
    delta: float | None = None
    neighbours: str = "zero-out"

    def __post_init__(self):
        for name in ("num_kernels", "horizon", "quorum", "max_selected", "max_votes", "num_explore"):
            value = getattr(self, name)
            check_count(name, value, at_least=0 if name == "num_explore" else 1)
            if value > LARGEST_NUMBER:
                fail(name, f"at most {LARGEST_NUMBER}", value)
            object.__setattr__(self, name, int(value))
        if self.num_kernels > MAX_KERNELS:
            fail("num_kernels", f"at most {MAX_KERNELS}", self.num_kernels)
        if self.mechanism in ("toeplitz", "gnmax") and self.horizon > LONGEST_PRIVATE:
            fail("horizon", f"at most {LONGEST_PRIVATE} with mechanism={self.mechanism!r}", self.horizon)
        _set_number(self, "alpha", at_least=0, at_most=1)
        for name, choices in (("mechanism", MECHANISMS), ("neighbours", NEIGHBOURS)):
            if getattr(self, name) not in choices:
                fail(name, " or ".join(map(repr, choices)), repr(getattr(self, name)))
        used = {"none": (), "local": ("epsilon",)}.get(self.mechanism, ("epsilon", "delta"))
        for name, most in (("epsilon", LARGEST_EPSILON), ("delta", 0.5)):
            if name in used:
                _set_number(self, name, above=0, at_most=most)
            elif getattr(self, name) is not None:
                fail(name, f"None with mechanism={self.mechanism!r}", getattr(self, name))

    @property
    def max_indices(self) -> int:
        """Largest number of indices in a message: a randomised vote may have any number."""
        return self.num_kernels if self.mechanism == "local" else min(self.max_selected, self.num_kernels)

    def to_json(self) -> str:
        """Return the rules as JSON, for the file of the ballot."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> "BallotRules":
        """Return the rules in `text`, or raise a `ValueError`."""
        content = strict_json(text)
        if not isinstance(content, dict) or content.keys() != {
            f.name for f in dataclasses.fields(BallotRules)
        }:
            raise ValueError("the fields of the rules are not those of a ballot")
        return BallotRules(**content)

    def differences(self, other: "BallotRules") -> list[str]:
        """Return how `other` differs, as "name is A there and B here"."""
        names = (field.name for field in dataclasses.fields(self))
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in names]
        return [
            f"{name} is {there!r} there and {here!r} here" for name, here, there in pairs if here != there
        ]


def _set_number(rules: BallotRules, name: str, **bounds: float) -> None:
    value: Any = getattr(rules, name)
    if not is_numeric(value):
        fail(name, "a number", got(value))
    check_finite(name, value)
    check_range(name, value, **bounds)
    object.__setattr__(rules, name, float(value))
