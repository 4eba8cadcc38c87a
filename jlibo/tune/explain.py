"""From the trials of a task to what the model expects of it, for `TunerTask` and `LiBOSampler`. Internal.

| here           | what it is                                                                         |
|----------------|------------------------------------------------------------------------------------|
| `Setting`      | a task and what was learned for it: the input of both functions                    |
| `forecast`     | the recommended trial and the expected gain of one more; costs a few suggestions   |
| `explain_task` | everything in an `Explanation`                                                     |

The numbers come from `jlibo.tune.outlook` and `jlibo.tune.insight`, on the padded arrays of a suggestion.
They are converted to the units of the scores here.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import jax
import numpy as np

from jlibo.belief.prior import PriorMixture
from jlibo.tune import arrays, insight, outlook
from jlibo.tune.ask import Candidates, Choices, choices_of
from jlibo.tune.engine import OwnTrials, PastTrials
from jlibo.tune.explanation import Estimate, Explanation, Recommendation, SimilarTask
from jlibo.tune.history import AbstractHistory
from jlibo.tune.importance import effect_matrices, parameter_names
from jlibo.tune.learning import Learned
from jlibo.tune.memory.records import TaskRecord, TrialRecord
from jlibo.tune.model import Model
from jlibo.tune.outlook import Outlook, Tried
from jlibo.tune.trial import Trial

NUM_AHEAD = 10
"""Default number of further trials that an explanation looks ahead."""


@final
class Past(NamedTuple):
    """The past tasks of an explanation, with their names in the order of the arrays."""

    names: tuple[str, ...]
    trials: PastTrials


def past_of(
    model: Model, tasks: Sequence[TaskRecord], trials: Sequence[TrialRecord], *, maximise: bool
) -> Past | None:
    """Return the tasks that are learned from; None if there is none."""
    found = arrays.past_trials(model.space, model.features, tasks, trials, maximise=maximise)
    if found is None:
        return None
    rows = arrays.scored_trials(tasks, trials)
    names = tuple(task.name for task in tasks if task.id in rows)
    return Past(names[-arrays.MOST_TASKS :], found[0])


@final
class Forecast(NamedTuple):
    """The recommended trial and the expected gain of one more, in the units of the scores."""

    place: int
    """Position of the recommended trial in the history."""
    expected_score: float
    std: float
    gain: float | None
    """None while nothing is known about the scale of the scores; so is `scale`."""
    scale: float | None


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """A task with its trials, the candidates to choose from, and what was learned from past tasks."""

    model: Model
    learned: Learned
    history: AbstractHistory
    candidates: Candidates
    budget: int

    @property
    def scores(self) -> np.ndarray:
        """The scores so far, and the estimates of stopped trials."""
        trials = self.history.trials
        return trials.scores[trials.is_told]

    @property
    def num_scores(self) -> int:
        """The number of complete trials."""
        return int(self.history.trials.is_complete.sum())

    @property
    def level(self) -> arrays.Level:
        """The units of the scores; there is at least one score."""
        return arrays.Level.of(self.scores, maximise=self.history.maximise)

    def arrays(self) -> tuple[arrays.OwnRows | OwnTrials, Tried, Choices, np.ndarray]:
        """Return rows, tried points, candidates and logarithm of the unit, as the compiled functions need."""
        trials = self.history.trials
        rows, log_unit = self.history.rows(room=self.budget)
        size = arrays.padded(max(len(trials), self.budget), arrays.LEAST_TRIALS)
        dtype = self.candidates.features.dtype
        points, complete = np.zeros((size, trials.points.shape[-1]), dtype), np.zeros(size, bool)
        points[: len(trials)], complete[: len(trials)] = trials.points, trials.is_complete
        scores = np.zeros(size, dtype)
        (told,) = np.nonzero(trials.is_told)
        scores[told], _ = arrays.level(self.scores, maximise=self.history.maximise)
        # Pending trials are still to come, so their configurations may be chosen.
        done = trials.only(~trials.is_pending)
        _, choices = choices_of(self.candidates, done, maximise=self.history.maximise)
        return rows, Tried(points, scores, complete), choices, np.asarray(log_unit, dtype)


def forecast(setting: Setting) -> Forecast | None:
    """Return the recommended trial and the expected gain of one more trial; None before the first score."""
    if setting.num_scores == 0:
        return None
    model = setting.model
    rows, tried, choices, log_unit = setting.arrays()
    found = model.programs.run(
        outlook.look,
        model.policy.noise_std,
        model.scaling,
        setting.learned.knowledge,
        model.features,
        rows,
        tried,
        choices,
        log_unit,
    )
    return _in_scores(setting, found.outlook)


def explain_task(
    setting: Setting,
    past: Past | None,
    *,
    name: str,
    num_trials: int,
    trial_at: Callable[[int], Trial],
) -> Explanation:
    """Return everything that the model thinks of a task.

    **Arguments:**

    - `setting`: the task.
    - `past`: the past tasks that `setting.learned` was learned from; None if there is none.
    - `name`: the name of the task.
    - `num_trials`: the largest number of further trials whose gain is estimated.
    - `trial_at`: returns the trial at a position of the history.
    """
    model, history, candidates = setting.model, setting.history, setting.candidates
    rows, tried, choices, log_unit = setting.arrays()
    num_scores = setting.num_scores
    found = insight.insight(
        model.policy,
        model.scaling,
        setting.learned.knowledge,
        model.features,
        rows,
        tried,
        choices,
        log_unit,
        np.arange(len(candidates.features)) < len(candidates.points),
        effect_matrices(model).astype(candidates.features.dtype),
        None if past is None else past.trials,
        arrays.padded(num_trials, NUM_AHEAD),  # few lengths, so that few programs are compiled
        programs=model.programs,
        key=jax.random.fold_in(candidates.key, num_scores),
    )
    found = jax.tree.map(np.asarray, found)
    best, recommended, now, gains = None, None, None, {}
    if num_scores > 0:
        now = _in_scores(setting, found.outlook)
        best = trial_at(int(history.trials.best_first(1, maximise=history.maximise)[0]))
        recommended = Recommendation(trial_at(now.place), now.expected_score, now.std)
        if now.gain is not None:
            size = setting.level.size
            pairs = zip(found.gains[:num_trials], found.gain_errors[:num_trials], strict=True)
            gains = {k: Estimate(size(gain), size(error)) for k, (gain, error) in enumerate(pairs, 1)}
    prior_trust, trust = _trust(setting.learned, found.weights)
    return Explanation(
        task=name,
        num_scores=num_scores,
        best=best,
        recommended=recommended,
        num_past=setting.learned.num_tasks,
        prior_trust=prior_trust,
        trust=trust,
        similar=() if past is None else _similar(past.names, found),
        importance=_importance(model, found),
        scale=None if now is None else now.scale,
        expected_gain=None if now is None else now.gain,
        expected_gains=gains,
    )


def _in_scores(setting: Setting, found: Outlook) -> Forecast:
    """Return an outlook in the units of the scores. There is at least one score."""
    level = setting.level
    place, expected = int(found.index), level.score(float(found.mean))
    std, gain, scale = (level.size(float(size)) for size in (found.std, found.gain, found.scale))
    is_known = float(setting.learned.knowledge.scales.num_tasks) > 0 or np.ptp(setting.scores / 4) > 0
    return (
        Forecast(place, expected, std, gain, scale)
        if is_known
        else Forecast(place, expected, std, None, None)
    )


def _trust(learned: Learned, weights: np.ndarray) -> tuple[float | None, float | None]:
    """Return the probability that the task is like the past, before its first score and now."""
    prior = learned.knowledge.prior
    if learned.num_tasks == 0 or not isinstance(prior, PriorMixture):
        return None, None
    # The last component is the wide prior, that of a task unlike the past.
    return float(-np.expm1(prior.log_weights[-1])), float(weights[:-1].sum())


def _similar(names: Sequence[str], found: insight.Insight) -> tuple[SimilarTask, ...]:
    assert found.likeness is not None and found.likeness_stds is not None
    tasks = [
        SimilarTask(name, float(likeness), float(std))
        for name, likeness, std in zip(names, found.likeness, found.likeness_stds, strict=False)
    ]
    return tuple(sorted(tasks, key=lambda task: -task.similarity))


def _importance(model: Model, found: insight.Insight) -> dict[str, Estimate]:
    shares = {
        name: Estimate(float(share), float(std))
        for name, share, std in zip(parameter_names(model), found.shares, found.share_stds, strict=True)
    }
    return dict(sorted(shares.items(), key=lambda item: -item[1].value))
