"""Methods of the arena: a name, what the method is told, and a function that makes its agent."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, final

import equinox as eqx

from jlibo.arena.cards import check_card, facts_of
from jlibo.arena.joint import AbstractJointLearner
from jlibo.belief.scaling import RAW, AbstractScaling
from jlibo.checks import fail
from jlibo.envs.linear.facts import Facts
from jlibo.front_door import check_fields
from jlibo.meta.base import AbstractMetaLearner, RunSizes
from jlibo.meta.exploration import AbstractExploration
from jlibo.policies.base import AbstractPolicy

if TYPE_CHECKING:
    from jlibo.arena.environment import Environment


@final
class SequentialAgent(eqx.Module):
    """A meta-learner and a policy, which play tasks in sequence.

    ```python
    import jlibo
    from jlibo.arena import SequentialAgent

    agent = SequentialAgent(jlibo.FixedPrior(), jlibo.GPTS(noise_std=1.0))
    ```
    """

    meta_learner: AbstractMetaLearner
    policy: AbstractPolicy
    exploration: AbstractExploration | None = None
    """Schedule of forced exploration; None for that of the meta-learner."""
    scaling: AbstractScaling = RAW

    def __check_init__(self):
        check_fields(self)


Agent = SequentialAgent | AbstractJointLearner
Setting = Literal["sequential", "concurrent"]


def never(environment: "Environment") -> None:
    """Return None: the method runs on every environment."""


@final
@dataclasses.dataclass(frozen=True)
class Method:
    """A method of the arena.

    **Arguments:**

    - `name`: name of the method.
    - `summary`: what it does, in one line.
    - `reference`: where it was published.
    - `card`: what it is told and what it needs: names of `jlibo.arena.PRIVILEGES`.
    - `make`: returns the agent, given the facts on the card and the sizes of the run. It runs inside of `jit`
      and of `vmap` over seeds, so facts are traced.
    - `setting`: "sequential" for tasks one after the other, "concurrent" for all tasks in every round.
    - `optional`: facts on the card without which the method still runs. If an environment does not have
      another fact of the card, the method does not run there.
    - `refuses`: returns why the method does not run on an environment, or None if it does.
    - `oracle`: name of the method from which the excess is measured, where it runs: the same base policy with
      the true prior. Elsewhere it is measured from "oracle".

    **Raises:** `ValueError` for an unknown name on the card.

    ```python
    import jlibo
    from jlibo.arena import Method, SequentialAgent

    def make(facts, sizes):
        return SequentialAgent(jlibo.FixedPrior(facts.prior), jlibo.Greedy(facts.noise_std))

    greedy = Method("greedy oracle", "Greedy play with the true prior.", "", ("noise_std", "prior"), make)
    ```
    """

    name: str
    summary: str
    reference: str
    card: tuple[str, ...]
    make: Callable[[Facts, RunSizes], Agent]
    setting: Setting = "sequential"
    optional: tuple[str, ...] = ()
    refuses: Callable[["Environment"], str | None] = never
    oracle: str = "oracle"

    def __post_init__(self):
        check_fields(self)
        check_card(self.card)
        strangers = set(self.optional) - set(self.card)
        if strangers:
            fail("optional", "facts on the card", sorted(strangers))

    def refusal(self, environment: "Environment") -> str | None:
        """Return why the method does not run on `environment`, or None if it does."""
        missing = [
            name
            for name in facts_of(self.card)
            if name not in self.optional and name not in environment.known_facts
        ]
        if missing:
            return f"the environment has no {', '.join(missing)}"
        if "fresh_contexts" in self.card and environment.kind != "fresh":
            return "needs fresh contexts"
        return self.refuses(environment)
