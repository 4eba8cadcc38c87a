"""The function that a user optimises: what it takes, and how an evaluation ends. Internal."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, final

from jlibo.checks import did_you_mean, fail
from jlibo.tune.memory.records import finite_score
from jlibo.tune.space.space import SearchSpace
from jlibo.tune.trial import Trial, TrialStopped

TRIAL = "trial"
"""Name of the argument that gets the trial."""


class EvaluationError(RuntimeError):
    """The function cannot be evaluated: all first evaluations failed, or no worker could start."""


@final
@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A function of the parameters, and whether it also takes the trial. It is pickled with the function.

    **Arguments:**

    - `function`: the function.
    - `wants_trial`: whether it has an argument `trial` that is not a parameter of the space.
    """

    function: Callable[..., Any]
    wants_trial: bool

    @classmethod
    def of(cls, evaluate: Any, space: SearchSpace) -> "Evaluation":
        """Return the evaluation, after a check that the function takes the parameters of the space."""
        if not callable(evaluate):
            fail("evaluate", "a function of the parameters", f"{evaluate!r} ({type(evaluate).__name__})")
        try:
            arguments = inspect.signature(evaluate).parameters.values()
        except (TypeError, ValueError):  # some functions written in C have no signature
            return cls(evaluate, False)
        named = {
            one.name: one for one in arguments if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        }
        takes_any = any(one.kind == one.VAR_KEYWORD for one in arguments)
        wants_trial = TRIAL in named and TRIAL not in space
        known = [*space, *([TRIAL] if wants_trial else [])]
        expected = f"a function with the arguments {', '.join(space)}"
        for name, parameter in space.items():
            if name not in named and not takes_any:
                fail(
                    "evaluate", expected, f"one without {name!r}{did_you_mean(name, set(named) - set(known))}"
                )
            is_optional = name not in named or named[name].default is not inspect.Parameter.empty
            if parameter.when is not None and not is_optional:
                optional = f"{expected}, of which {name!r}, which not every configuration has, has a default"
                fail("evaluate", optional, "no default")
        for one in arguments:
            is_required = one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
            if is_required and (one.name not in known or one.kind == one.POSITIONAL_ONLY):
                fail("evaluate", expected, f"one that also needs {one.name!r}{did_you_mean(one.name, known)}")
        return cls(evaluate, wants_trial)

    def __call__(self, trial: Trial) -> "Outcome":
        """Evaluate a trial. Whatever the function raises is in the outcome."""
        try:
            extra = {TRIAL: trial} if self.wants_trial else {}
            returned = self.function(**trial.params, **extra)
        except TrialStopped:
            return Outcome(trial, is_stopped=True)
        except BaseException as error:  # the caller decides which errors end the loop
            return Outcome(trial, failure=text_of(error), error=error)
        try:
            score = finite_score(returned)
        except ValueError:
            return Outcome(trial, failure=f"evaluate returned {_shown(returned)}, which is not a number")
        return Outcome(trial, score, None if score is not None else f"evaluate returned {_shown(returned)}")


@final
@dataclasses.dataclass(frozen=True)
class Outcome:
    """How an evaluation ended.

    - `score`: the score; None if there is none.
    - `failure`: why it failed; None if it did not.
    - `error`: what the function raised, if it did.
    - `is_stopped`: whether it raised `TrialStopped`.
    - `has_died`: whether its process ended.
    """

    trial: Trial
    score: float | None = None
    failure: str | None = None
    error: BaseException | None = None
    is_stopped: bool = False
    has_died: bool = False


def text_of(error: BaseException) -> str:
    """Return an exception as text: its type and its message."""
    name = type(error).__name__
    try:
        message = str(error)
    except Exception:  # a message that cannot be made must not hide the error
        message = ""
    return f"{name}: {message}" if message else name


def _shown(value: Any) -> str:
    try:
        return f"{repr(value)[:100]} ({type(value).__name__})"
    except Exception:  # as above
        return f"a {type(value).__name__}"
