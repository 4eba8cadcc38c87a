"""What a tuner thinks of a task, as values to read: the results of `recommended` and `explain`."""

import dataclasses
import html
from typing import Any, NamedTuple, final

from jlibo.printable import printable
from jlibo.tune.trial import Trial

MOST_SHOWN = 4
"""Number of past tasks, and of parameters, that the text of an explanation names."""


@final
class Estimate(NamedTuple):
    """An estimated number and its uncertainty; part of an `Explanation`."""

    value: float
    std: float


@final
@dataclasses.dataclass(frozen=True)
class Recommendation:
    """The trial that the model expects to be the best; returned by `TunerTask.recommended`.

    With noisy scores, the trial with the best score is often only a lucky one. This one has the highest
    expected score without noise, given all scores of the task and what was learned from past tasks.

    ```python
    import jlibo

    task = jlibo.Tuner(jlibo.SearchSpace(x=jlibo.Float(0, 1))).task("first", budget=5)
    for trial in task:
        task.tell(trial, -((trial.params["x"] - 0.3) ** 2))
    chosen = task.recommended
    print(chosen.params, chosen.expected_score, chosen.std)
    ```
    """

    trial: Trial
    """The recommended trial, one of those that have a score."""
    expected_score: float
    """Its expected score without noise, in the units of the scores."""
    std: float
    """Standard deviation of the score without noise, as the model sees it."""

    @property
    def params(self) -> dict[str, Any]:
        """Value of each parameter of the trial, by name."""
        return self.trial.params


@final
@dataclasses.dataclass(frozen=True)
class SimilarTask:
    """A past task and how much it resembles the task at hand; part of an `Explanation`."""

    name: str
    """Name of the past task."""
    similarity: float
    """Expected correlation of the two tasks' scores over the search space, from -1 to 1."""
    std: float
    """Standard deviation of this correlation under the posterior; large while the task has few scores."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Explanation:
    """What the model thinks of a task by now; returned by `TunerTask.explain`. Printing it gives a summary.

    All numbers are given the scores so far. Pending trials count as trials that are still to come. Gains,
    expected scores and `scale` are in the units of the scores; a gain is positive also when scores are
    minimised. Numbers with a standard deviation are means over functions drawn from the posterior.
    """

    task: str
    """Name of the task."""
    num_scores: int
    """Number of scores so far."""
    best: Trial | None
    """The trial with the best score; None before the first score."""
    recommended: Recommendation | None
    """The trial that the model expects to be the best; None before the first score."""
    num_past: int
    """Number of past tasks that were learned from."""
    prior_trust: float | None
    """Probability, before the first score, that the task is like the past ones. None without a past, or if
    the learner has no second opinion: only the adaptive mode weighs its learned prior against a wide one."""
    trust: float | None
    """The same probability given the scores so far: the posterior weight of the learned prior."""
    similar: tuple[SimilarTask, ...]
    """The past tasks, the most similar first."""
    importance: dict[str, Estimate]
    """Share in the sum of the parameters' total effects on this task's scores by parameter, the largest
    first. The shares sum to one."""
    scale: float | None
    """Standard deviation of the scores over the search space, as the model estimates it. None while nothing
    is known about it: without two different scores, and without a past."""
    expected_gain: float | None
    """Expected gain of the most promising configuration, E[max(f(x) - f(x*), 0)] with x* the recommended
    trial and f the score without noise. None before the first score, or while `scale` is None."""
    expected_gains: dict[int, Estimate]
    """Expected gain of the next k trials, by k, with its standard error: how much better than the
    recommended trial the best of them is, without noise. It is estimated by simulation: the policy plays k
    trials on functions drawn from the posterior. Empty if `expected_gain` is None."""

    def __str__(self) -> str:
        lines = [self._scores(), *self._past()]
        shown = [f"{_name(name)} {_share(one)}" for name, one in self.importance.items()]
        lines.append(f"What matters here: {_listed(shown)}")
        if self.expected_gain is None:
            why = "there is no score yet" if self.num_scores == 0 else "the scores do not differ yet"
            lines.append(f"Expected gain: unknown, since {why}.")
        else:
            most = max(self.expected_gains)
            gain = self.expected_gains[most]
            lines.append(
                f"Expected gain: {self.expected_gain:.3g} by the next trial, {gain.value:.3g} +- "
                f"{gain.std:.1g} by the next {most} (standard deviation of the scores: {self.scale:.3g})."
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def _scores(self) -> str:
        begin = f"Task '{_name(self.task)}':"
        if self.best is None or self.recommended is None:
            return f"{begin} no score yet."
        chosen, number = self.recommended, self.recommended.trial.number
        scores = _count(self.num_scores, "score")
        which = "the same trial" if number == self.best.number else f"trial {number}"
        return (
            f"{begin} {scores}, best {self.best.score:.6g} (trial {self.best.number}).\n"
            f"Recommended: {which}, expected score {chosen.expected_score:.6g} +- {chosen.std:.2g}."
        )

    def _past(self) -> list[str]:
        if self.num_past == 0:
            return ["Past: none; the model knows only the trials of this task."]
        tasks = _count(self.num_past, "task")
        if self.trust is None or self.prior_trust is None:
            line = f"Past: {tasks}; this learner always relies on them."
        else:
            line = f"Past: {tasks}, trusted by {self.trust:.0%} ({self.prior_trust:.0%} before any score)."
        shown = [f"'{_name(one.name)}' {one.similarity:.2f} +- {one.std:.2f}" for one in self.similar]
        if not shown:
            return [line]
        return [line, f"Most similar (correlation over the space): {_listed(shown)}"]


def _listed(parts: list[str]) -> str:
    return ", ".join(parts[:MOST_SHOWN]) + (", ..." if len(parts) > MOST_SHOWN else ".")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _share(share: Estimate) -> str:
    return f"{share.value:.0%} +- {share.std:.0%}"


def _name(text: str) -> str:
    return printable(text, max_length=60)
