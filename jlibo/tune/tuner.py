"""The tuner: the same model, one data set after another, each needing fewer trials than the last.

    tuner = jlibo.Tuner(space, memory="glmnet.db")
    with tuner.task("credit-g", budget=50) as task:
        for trial in task:
            task.tell(trial, evaluate(**trial.params))

| here        | in the paper's words                                                                   |
|-------------|----------------------------------------------------------------------------------------|
| a task      | task s, a bandit problem over the search space                                         |
| a trial     | one step: an action and, once told, its reward                                         |
| importance  | how much of the functions lies in each base kernel selected                            |

Everything that happens is in the memory, and nothing else is: a tuner that is opened again, or another one in
another process, knows the same. Trials added from elsewhere (`add_task`) teach like the others; but no forced
exploration was among them, so the paper's guarantee does not cover what is learned from them.
"""

import dataclasses
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import jax.numpy as jnp
import numpy as np

from jlibo.checks import check_count, fail
from jlibo.meta import AbstractMetaLearner
from jlibo.policies import AbstractPolicy
from jlibo.tune.learning import Learned, has_changed, learn_records, score_counts, summarise_records
from jlibo.tune.memory import Memory
from jlibo.tune.memory_records import finite_score, whole
from jlibo.tune.model import make_model
from jlibo.tune.process import check_process
from jlibo.tune.space import SearchSpace
from jlibo.tune.task import TunerTask

DEFAULT_BUDGET = 50
MOST_LEARNED = 4
"""What was learned is kept for so many tasks at hand, each of which learns from all but itself."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Learned:
    """What was learned from tasks with so many scores each, in the state `revision` of the memory.

    It was found good enough until the state `checked`.
    """

    revision: int
    checked: int
    counts: dict[int, int]
    learned: Learned


@final
class Tuner:
    """Tunes over `space`, and remembers in `memory` (a file; None: only as long as the tuner lives).

    **Arguments:**

    - `maximise`: whether a higher score is better. A `Memory` that is handed in open knows it already.
    - `mode`: "adaptive" (past tasks teach which parameters matter and where good configurations lie) or
      "paper" (which matter alone, with forced exploration: LiBO as published).
    - `learner`, `policy`: any meta-learner and any policy of the library, or of your own, instead of those of
      the mode: `Tuner(space, learner=jlibo.MetaKGL(0.1, 0.1), policy=jlibo.GPTS(0.1))`. They see each task's
      scores standardised.
    - `candidates`: the only configurations that may be asked for, if there is such a list. Trials have their
      values exactly as given.
    - `seed`: of all that is random.
    - `sizes`: of the feature dictionary, such as `dict(num_basis=8)`; see `space_features`.
    """

    def __init__(
        self,
        space: SearchSpace,
        memory: str | os.PathLike | Memory | None = None,
        *,
        maximise: bool | None = None,
        mode: str = "adaptive",
        learner: AbstractMetaLearner | None = None,
        policy: AbstractPolicy | None = None,
        candidates: Iterable[Mapping[str, Any]] | None = None,
        seed: int = 0,
        sizes: Mapping[str, Any] | None = None,
    ):
        check_process("Tuner")
        if not isinstance(space, SearchSpace):
            fail("space", "a SearchSpace", type(space).__name__)
        if maximise is not None and not isinstance(maximise, bool | np.bool_):
            fail("maximise", "True or False", repr(maximise))
        self.space = space
        self.mode = mode
        self.seed = whole("seed", seed, at_least=0)
        self.model = make_model(
            space, mode=mode, learner=learner, policy=policy, candidates=candidates, sizes=sizes or {}
        )
        self._is_of_mode = learner is None and policy is None
        self._own_memory = not isinstance(memory, Memory)
        if isinstance(memory, Memory):
            asked = memory.maximise if maximise is None else bool(maximise)
            differences = memory.differences(space=space, maximise=asked)
            if differences:
                fail("memory", "one of this search space and direction", "; ".join(differences))
            self.memory = memory
        else:
            # True, also where a memory says otherwise: who forgets the direction should hear of it.
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
        """Close the memory, unless it was handed in open."""
        if self._own_memory:
            self.memory.close()

    # --- tasks ----------------------------------------------------------------------------------------------

    def task(self, name: str, budget: int | None = None) -> TunerTask:
        """The task called `name`: a new one, or one to go on with, its pending trials included.

        `budget` is how many trials it may take in all; it may be changed when the task is taken up again.
        """
        if budget is not None:
            check_count("budget", budget)
        record = self.memory.task(name, budget=budget)
        return TunerTask(self, record, record.budget or DEFAULT_BUDGET)

    def add_task(
        self, name: str, configs: Sequence[Mapping[str, Any]], scores: Sequence[float | None]
    ) -> None:
        """Remember a task that was done elsewhere. A score of None or NaN is a failed trial.

        Nothing in it was forced exploration: the paper's guarantee does not cover what it teaches.
        """
        if len(configs) != len(scores):
            fail("scores", f"one for each of the {len(configs)} configs", f"{len(scores)}")
        if any(task.name == name for task in self.memory.tasks()):
            fail("name", "the name of a task that is not in the memory yet", repr(name))
        # Checked before the task is made: what is refused should leave no empty task behind.
        pairs = [
            (self.space.validate(params), finite_score(score))
            for params, score in zip(configs, scores, strict=True)
        ]
        record = self.memory.task(name, source="added")
        self.memory.add_finished(record.id, pairs)

    # --- what was learned -----------------------------------------------------------------------------------

    def importance(self) -> dict[str, float]:
        """How much of the scores' variation each parameter, and each pair, accounts for over all tasks.

        Shares that sum to one, the largest first. What was not selected has a share of zero. Empty before
        the first task with two scores.
        """
        knowledge, num_tasks = self.knowledge(at_once=True)
        if num_tasks == 0:
            return {}
        summary = summarise_records(self.model, *self.memory.snapshot(), knowledge, maximise=self.maximise)
        if summary is None:  # all tasks were deleted in the meantime
            return {}
        features = self.model.features
        points = self.space.sample_unit(1024, rng=np.random.default_rng(0))
        values = np.asarray(features(jnp.asarray(points, jnp.result_type(float))), np.float64)
        mean = np.asarray(summary.mean, np.float64)
        covariance = np.asarray(summary.covariance, np.float64)
        group_of = np.asarray(features.groups)
        selected = np.asarray(knowledge.support)
        if selected.sum() == len(features.free_groups):
            selected = np.ones_like(selected)  # none stood out: then all are in use, see `MetaInfo.fell_back`
        shares = {}
        for group, name in enumerate(self.model.names):
            if group in features.free_groups:
                continue
            own = group_of == group
            centred = values[:, own] - values[:, own].mean(0)
            second = covariance[np.ix_(own, own)] + np.outer(mean[own], mean[own])
            shares[name] = float(((centred @ second) * centred).sum(1).mean()) if selected[group] else 0.0
        total = sum(shares.values())
        ranked = sorted(shares.items(), key=lambda item: -item[1])
        return {name: share / total for name, share in ranked}

    def plot_importance(self, ax: Any = None) -> Any:
        """`importance` as bars."""
        from jlibo.plot.tuning import plot_importance

        return plot_importance(self.importance(), ax)

    def plot_progress(self, ax: Any = None) -> Any:
        """The best score so far against the number of trials, a line for each task, pale to dark."""
        from jlibo.plot.tuning import plot_progress

        tasks, trials = self.memory.snapshot()
        by_task = {
            task.name: [trial.score for trial in trials if trial.task_id == task.id and trial.finished]
            for task in tasks
        }
        return plot_progress(by_task, ax, maximise=self.maximise)

    def knowledge(self, excluding: int | None = None, *, at_once: bool = False) -> Learned:
        """What all tasks but `excluding` teach, and how many they are.

        It is learned anew when they change: when another task teaches, or with enough new scores (see
        `learning.has_changed`). With `at_once`, every new score counts. Threads may call it at once.
        """
        check_process("ask or importance")
        with self._lock:
            held = self._learned.get(excluding)
            # Read before the trials: what changes in between is learned from twice, and not lost.
            revision = self.memory.revision(excluding=excluding)
            if held is None or (at_once and held.revision != revision):
                held = self._learn(revision, excluding)
            elif held.checked != revision:
                if has_changed(held.counts, self.memory.score_counts(excluding=excluding)):
                    held = self._learn(revision, excluding)
                held = dataclasses.replace(held, checked=revision)
            self._learned.pop(excluding, None)  # to the end: the first was not used for longest
            while len(self._learned) >= MOST_LEARNED:
                self._learned.pop(next(iter(self._learned)))
            self._learned[excluding] = held
            return held.learned

    def _learn(self, revision: int, excluding: int | None) -> "_Learned":
        tasks, trials = self.memory.snapshot()
        tasks = [task for task in tasks if task.id != excluding]
        trials = [trial for trial in trials if trial.task_id != excluding]
        learned = learn_records(self.model, tasks, trials, maximise=self.maximise)
        return _Learned(revision, revision, score_counts(trials), learned)
