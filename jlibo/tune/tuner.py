"""The tuner: Bayesian optimisation of one search space on a sequence of tasks, each learning from the past.

    tuner = jlibo.Tuner(space, memory="glmnet.db")
    task = tuner.optimise(evaluate, task="credit-g", budget=50)

| here        | in the paper's words                                                                   |
|-------------|----------------------------------------------------------------------------------------|
| a task      | task s, a bandit problem over the search space                                         |
| a trial     | one step: an action and, once told, its reward                                         |
| importance  | the share of the functions' variance in each selected base kernel                      |

All state of a tuner is in the memory, so a tuner that is opened again, or in another process, continues from
the same state. Tasks from elsewhere (`add_task`) are learned from like all others. They contain no forced
exploration, so the paper's guarantee does not cover what is learned from them.
"""

import dataclasses
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np

from jlibo.checks import check_count, fail
from jlibo.federated.messages import Announcement
from jlibo.front_door import front_door
from jlibo.meta import AbstractMetaLearner
from jlibo.policies import AbstractPolicy
from jlibo.tune.curves.rule import MedianRule, stop_trials_rule
from jlibo.tune.direction import maximise_of
from jlibo.tune.importance import effect_matrices, parameter_names
from jlibo.tune.learning import (
    Learned,
    has_changed,
    learn_records,
    prepare_learning,
    score_counts,
    summarise_records,
)
from jlibo.tune.loop.tuner_loop import AbstractTunerLoop
from jlibo.tune.memory.memory import Memory
from jlibo.tune.memory.records import whole
from jlibo.tune.model import DEFAULT_BUDGET, following, make_model
from jlibo.tune.process import check_process
from jlibo.tune.space.space import SearchSpace
from jlibo.tune.stopping import ExpectedGainBelow, stop_rule
from jlibo.tune.task import TunerTask
from jlibo.tune.tuner_results import AbstractTunerResults

logger = logging.getLogger(__name__)

Constraint = Callable[[dict[str, Any]], bool]
MOST_LEARNED = 4
"""Number of tasks for which `knowledge` is cached; each task learns from all tasks but itself."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Learned:
    """Cached result of learning: `counts` are the scores by task id that it was learned from.

    It was computed at `revision` of the memory and is known to be recent enough up to revision `checked`.
    """

    revision: int
    checked: int
    counts: dict[int, int]
    learned: Learned


@final
class Tuner(AbstractTunerResults, AbstractTunerLoop):
    """Tunes a search space on one task after another and learns from all past tasks.

    A tuner is a context manager that closes the memory. Threads may share it.

    **Arguments:**

    - `space`: the search space of all tasks.
    - `memory`: the path of the memory file, or an open `Memory`. With None, the memory is in RAM and ends
      with the tuner. It may have been used with another search space: trials teach as far as they fit, and a
      `jlibo.tune.SpaceChangedWarning` says once what changed (see `Memory.open`).
    - `maximise`: whether a higher score is better. None stands for True, or for the direction of an open
      `Memory`.
    - `mode`: "adaptive" learns from past tasks which parameters matter and where good configurations lie.
      "paper" learns only which parameters matter, with forced exploration: LiBO as published. "federated" is
      a client of F-LiBO: it uses the kernels that a server elected and that `jlibo.tune.publish` stored in
      the memory.
    - `learner`, `policy`: any meta-learner and any policy, used instead of those of the mode:
      `Tuner(space, learner=jlibo.MetaKGL(0.1, 0.1), policy=jlibo.GPTS(0.1))`. They get the standardised
      scores of each task.
    - `candidates`: the configurations to choose from, if they are a list. Trials have exactly these values.
    - `seed`: the seed of all random draws.
    - `sizes`: the sizes of the feature dictionary, such as `dict(num_basis=8)`; see `space_features`.
    - `constraint`: a function from a configuration (a dict) to True or False, or a list of functions. Only
      configurations for which all are true are suggested. It is not stored in the memory.
    - `maximize`, `direction`: other spellings of `maximise`; `direction` is "maximize" or "minimize", also
      with an "s".
    - `cache`: whether compiled programs are stored in the user's cache folder, so that the first answer of a
      later process does not wait for the compiler. Only the user can read the files. The environment variable
      `JLIBO_CACHE=0` turns it off for all tuners.

    **Raises:**

    - `MemoryMismatch`: the file has another direction; or trials with a score, but none with a parameter of
      `space`, or none that fits, because a new parameter has no `default`.
    - `MemoryFileError`: the file is not a memory, is damaged or cannot be written.
    - `ForkedProcessError`: jax was used in a parent process before the fork.
    - `ValueError`: an argument is invalid.

    ```python
    import jlibo

    space = jlibo.SearchSpace(alpha=jlibo.Float(0, 1), depth=jlibo.Int(1, 8))
    with jlibo.Tuner(space, seed=0) as tuner:
        for name, best_alpha in [("first", 0.4), ("second", 0.5)]:
            task = tuner.task(name, budget=6)
            for trial in task:
                task.tell(trial, -((trial.params["alpha"] - best_alpha) ** 2))
            print(name, task.best.params)
        print(tuner.importance())
    ```
    """

    @front_door
    def __init__(
        self,
        space: SearchSpace,
        memory: str | os.PathLike[str] | Memory | None = None,
        *,
        maximise: bool | None = None,
        mode: str = "adaptive",
        learner: AbstractMetaLearner | None = None,
        policy: AbstractPolicy | None = None,
        candidates: Iterable[Mapping[str, Any]] | None = None,
        seed: int = 0,
        sizes: Mapping[str, Any] | None = None,
        constraint: Constraint | Sequence[Constraint] | None = None,
        maximize: bool | None = None,
        direction: str | None = None,
        cache: bool = True,
    ):
        check_process("Tuner")
        maximise = maximise_of(maximise=maximise, maximize=maximize, direction=direction)
        self.space = space
        self.mode = mode
        self.seed = whole("seed", seed, at_least=0)
        self.model = make_model(
            space,
            mode=mode,
            learner=learner,
            policy=policy,
            candidates=candidates,
            sizes=sizes,
            constraint=constraint,
            keep_programs=cache,
        )
        self._is_of_mode = learner is None and policy is None
        if mode == "federated" and learner is not None:
            fail("learner", "None with mode='federated', whose prior the server determines", repr(learner))
        self._announcement: Announcement | None = None
        self._own_memory = not isinstance(memory, Memory)
        if isinstance(memory, Memory):
            asked = memory.maximise if maximise is None else maximise
            differences = memory.differences(space=memory.space, maximise=asked)
            if differences:
                fail("memory", "one of this direction", "; ".join(differences))
            self.memory = memory.with_space(space)
        else:
            # None means True also for an existing file: a memory that minimises then raises an error.
            self.memory = Memory.open(memory, space=space, maximise=maximise is not False)
        self.maximise = self.memory.maximise
        self._lock = threading.RLock()
        self._learned: dict[int | None, _Learned] = {}

    def __repr__(self) -> str:
        where = "memory in RAM" if self.memory.path is None else f"memory {self.memory.path!r}"
        parts = f"{type(self.model.learner).__name__}, {type(self.model.policy).__name__}"
        how = f"mode {self.mode!r}" if self._is_of_mode else parts
        return f"Tuner({self.space.num_parameters} parameters, {where}, {how})"

    def __enter__(self) -> "Tuner":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the memory, unless it was passed as an open `Memory`."""
        if self._own_memory:
            self.memory.close()

    # --- tasks ----------------------------------------------------------------------------------------------

    def task(
        self,
        name: str,
        budget: int | None = None,
        *,
        stop_when: float | ExpectedGainBelow | None = None,
        stop_trials: bool | MedianRule = True,
    ) -> TunerTask:
        """Return the task called `name`: a new one, or an existing one to resume with its pending trials.

        **Arguments:**

        - `name`: the name of the task, not empty, at most 4096 characters.
        - `budget`: the number of trials in total; replaces the stored one. With None, a stored budget is kept
          and a task without one gets 50.
        - `stop_when`: end a loop over the task before the budget is spent, when the expected gain of one more
          trial is below this many units of the score; or a rule, an `ExpectedGainBelow`. A number stands for
          `ExpectedGainBelow(number)`. It is not stored.
        - `stop_trials`: the rule by which `Trial.should_stop` judges trials that report scores while they
          run. True stands for `MedianRule()`, and False for never.

        **Returns:**

        A `TunerTask`.

        **Raises:**

        - `ValueError`: an argument is invalid.
        """
        rule, trial_rule = stop_rule(stop_when), stop_trials_rule(stop_trials)
        if budget is not None:
            check_count("budget", budget)
        record = self.memory.task(name, budget=budget)
        return TunerTask(self, record, record.budget or DEFAULT_BUDGET, rule, trial_rule)

    # --- results --------------------------------------------------------------------------------------------

    def importance(self) -> dict[str, float]:
        """Return how much each parameter matters: its share in the sum of the parameters' total effects.

        The total effect of a parameter is the mean squared change of the score, over all past tasks, if that
        parameter alone is drawn anew. It contains the interactions with other parameters.

        **Returns:**

        Shares by name, which sum to one, the largest first. Empty before the first task with two scores.
        """
        knowledge, num_tasks = self.knowledge(at_once=True)
        if num_tasks == 0:
            return {}
        summary = summarise_records(self.model, *self.memory.snapshot(), knowledge, maximise=self.maximise)
        if summary is None:  # all tasks were deleted meanwhile
            return {}
        mean = np.asarray(summary.mean, np.float64)
        second = np.asarray(summary.covariance, np.float64) + np.outer(mean, mean)
        effects = (effect_matrices(self.model) * second).sum((1, 2))
        shares = dict(zip(parameter_names(self.model), effects.tolist(), strict=True))
        total = sum(shares.values())
        ranked = sorted(shares.items(), key=lambda item: -item[1])
        return {name: share / total for name, share in ranked}

    def plot_importance(self, ax: Any = None) -> Any:
        """Plot `importance` as bars on `ax` (new axes if None) and return the axes."""
        from jlibo.plot.tuning import plot_importance

        return plot_importance(self.importance(), ax)

    def plot_progress(self, ax: Any = None) -> Any:
        """Plot the best score so far against the number of trials, one line per task, pale to dark.

        Draws on `ax` (new axes if None) and returns the axes.
        """
        from jlibo.plot.tuning import plot_progress

        tasks, trials = self.memory.snapshot()
        by_task = {
            task.name: [trial.score for trial in trials if trial.task_id == task.id and trial.finished]
            for task in tasks
        }
        return plot_progress(by_task, ax, maximise=self.maximise)

    @front_door
    def knowledge(self, excluding: int | None = None, *, at_once: bool = False) -> Learned:
        """Return what is learned from all tasks but `excluding`, and their number.

        The result is cached. It is recomputed when the set of tasks with at least two scores changes, or
        after enough new scores (see `learning.has_changed`). Threads may call this concurrently.

        **Arguments:**

        - `excluding`: the id of a task that is not learned from.
        - `at_once`: whether any new score triggers the computation.

        **Returns:**

        A `Learned` with the fields `knowledge` and `num_tasks`.
        """
        check_process("ask or importance")
        with self._lock:
            self._follow()
            held = self._learned.get(excluding)
            # Read before the trials: a change in between causes a second computation, but is not missed.
            revision = self.memory.revision(excluding=excluding)
            if held is None or (at_once and held.revision != revision):
                held = self._learn(revision, excluding)
            elif held.checked != revision:
                if has_changed(held.counts, self.memory.score_counts(excluding=excluding)):
                    held = self._learn(revision, excluding)
                held = dataclasses.replace(held, checked=revision)
            self._learned.pop(excluding, None)  # reinserted at the end: the first is the least recently used
            while len(self._learned) >= MOST_LEARNED:
                self._learned.pop(next(iter(self._learned)))
            self._learned[excluding] = held
            return held.learned

    def _follow(self) -> None:
        """Take over what the server announced since the last call, in the federated mode."""
        if self.mode == "federated":
            announcement = self.memory.published()
            if announcement != self._announcement:
                self.model = following(self.model, announcement)
                self._announcement = announcement
                self._learned.clear()

    def _prepare(self, excluding: int) -> None:
        """Start to compile, or to load, what `knowledge` needs, before the past is read. Internal."""
        with self._lock:
            self._follow()
            if excluding not in self._learned:
                prepare_learning(self.model, self.memory.score_counts(excluding=excluding))

    def _learn(self, revision: int, excluding: int | None) -> "_Learned":
        tasks, trials = self.memory.snapshot()
        tasks = [task for task in tasks if task.id != excluding]
        trials = [trial for trial in trials if trial.task_id != excluding]
        learned = learn_records(self.model, tasks, trials, maximise=self.maximise)
        logger.debug("learned from %d tasks with %d trials", len(tasks), len(trials))
        return _Learned(revision, revision, score_counts(trials), learned)
