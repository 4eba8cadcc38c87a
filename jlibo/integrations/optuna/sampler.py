"""An Optuna sampler that learns from past studies by LiBO.

    storage = "sqlite:///studies.db"
    study = optuna.create_study(storage=storage, study_name="credit-g", sampler=LiBOSampler(storage=storage))
    study.optimize(objective, n_trials=50)

| Optuna                | here                                                                            |
|-----------------------|---------------------------------------------------------------------------------|
| a study               | a task; other studies with the same parameters are past tasks                   |
| relative search space | the parameters of the complete trials, with the conditions that they show       |
| independent sampling  | all others: changing ranges, unsupported distributions, unexplained conditions  |
| `constraints_func`    | an infeasible trial is a failed one: avoided, and never the best                |

Optuna does not know the parameters of a study before its first trial has finished, but the past tasks have
them. Until then, a configuration is chosen in the space of the past tasks, and its values are used for the
parameters with the same name and distribution. Past tasks are thus used from the first trial on.
"""

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from jlibo.checks import check_count, fail
from jlibo.front_door import front_door
from jlibo.integrations.optuna import trials as trials_of
from jlibo.integrations.optuna.choice import NUM_CANDIDATES, Chooser, Settings
from jlibo.integrations.optuna.explained import explain_study
from jlibo.integrations.optuna.past import MemoryPast, NoPast, StudiesPast
from jlibo.integrations.optuna.space import coded_parameter, decode
from jlibo.tune.ask import Candidates
from jlibo.tune.explain import NUM_AHEAD, past_of
from jlibo.tune.explanation import Explanation
from jlibo.tune.memory.memory import Memory
from jlibo.tune.process import check_process
from jlibo.tune.space.space import SearchSpace

DEFAULT_BUDGET = 50
SAMPLER_MODES = ("adaptive", "paper")
"""A study has no place for what the server of a federated run announces: use `jlibo.Tuner`."""


@final
class LiBOSampler(BaseSampler):
    """Optuna sampler whose model is learned from past tasks: a memory, or past studies, but not both.

    Without either, it is a sampler for single studies. It optimises one objective. Threads may share it, and
    it can be pickled unless its memory is in RAM.

    **Arguments:**

    - `memory`: the path of a jlibo memory, or an open `Memory`. Its tasks are learned from, and the study is
      added as a task.
    - `past_studies`: the studies to learn from, or their names in `storage`.
    - `storage`: an Optuna storage, or its URL. Without `past_studies`, all its studies are learned from,
      except the one with the name of the running study.
    - `seed`: the seed of all random draws; None for a random one.
    - `mode`: "adaptive" or "paper", see `jlibo.Tuner`.
    - `budget`: the approximate number of trials of a study. Forced exploration is a share of it.
    - `independent_sampler`: the sampler of parameters that are not in the model; by default
      `optuna.samplers.RandomSampler`.
    - `sizes`: the sizes of the feature dictionary, see `jlibo.tune.space_features`; by default the largest
      ones that are fast.
    - `warn_independent_sampling`: whether to warn, once per study, that a parameter is sampled independently.
    - `constraints_func`: a function from a finished trial to a sequence of numbers, as Optuna's samplers take
      it. A trial with a positive number is infeasible: it is never the best, and its neighbourhood is
      avoided, as that of a failed trial. Numbers that an objective sets by `trial.set_constraint` count too.
    - `defaults`: the values that past trials had of parameters which they did not suggest, by name, such as
      those that are new in the objective. Without one, a trial that has no value is not learned from.

    - `cache`: whether compiled programs are stored for later processes, see `jlibo.Tuner`.

    **Raises:**

    - `ValueError`: an argument is invalid, or both `memory` and `past_studies` or `storage` are given.
    - `MemoryMismatch`: during a study, if the memory has the other direction.
    - `ForkedProcessError`: jax was used in a parent process before the fork.

    ```python
    import optuna

    from jlibo.integrations.optuna import LiBOSampler


    def objective(trial):
        return (trial.suggest_float("x", -1, 1) - 0.3) ** 2


    study = optuna.create_study(sampler=LiBOSampler("memory.db", seed=0))
    study.optimize(objective, n_trials=8)
    print(study.best_params)
    ```
    """

    @front_door
    def __init__(
        self,
        memory: str | os.PathLike[str] | Memory | None = None,
        *,
        past_studies: Sequence[Study | str] | None = None,
        storage: str | BaseStorage | None = None,
        seed: int | None = None,
        mode: str = "adaptive",
        budget: int = DEFAULT_BUDGET,
        independent_sampler: BaseSampler | None = None,
        sizes: Mapping[str, Any] | None = None,
        warn_independent_sampling: bool = True,
        constraints_func: Callable[[FrozenTrial], Sequence[float]] | None = None,
        defaults: Mapping[str, Any] | None = None,
        cache: bool = True,
    ):
        check_process("LiBOSampler")
        if seed is not None:
            check_count("seed", seed, at_least=0)
        check_count("budget", budget)
        if mode not in SAMPLER_MODES:
            fail("mode", " or ".join(map(repr, SAMPLER_MODES)), repr(mode))
        trials_of.check_sources(past_studies, storage)
        if memory is not None and (past_studies is not None or storage is not None):
            fail("memory", "given alone, without `past_studies` or `storage`", "both")
        if defaults is not None and not isinstance(defaults, Mapping):
            fail("defaults", "a mapping from names of parameters to values", type(defaults).__name__)
        if memory is not None:
            past = MemoryPast(memory, dict(defaults or {}))
        elif past_studies is not None or storage is not None:
            past = StudiesPast(past_studies, storage, dict(defaults or {}))
        else:
            past = NoPast()
        settings = Settings(mode, budget, sizes, keep_programs=cache)
        self._chooser = Chooser(past, secrets.randbits(32) if seed is None else seed, settings)
        self._independent = independent_sampler or optuna.samplers.RandomSampler(seed=seed)
        self._warns = warn_independent_sampling
        self._constraints = trials_of.constraint_writer(constraints_func)
        self._forget()

    def _forget(self) -> None:
        """Reset the state that concerns running trials only."""
        self._spaces: dict[tuple[str, int], tuple[SearchSpace, set[str]]] = {}
        self._first: set[tuple[str, int]] = set()

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_chooser", "_independent", "_warns", "_constraints")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def close(self) -> None:
        """Close the memory, unless it was passed as an open `Memory`. It is opened again when needed."""
        self._chooser.past.close()

    def reseed_rng(self) -> None:
        """Draw a new seed, as Optuna requires of samplers that are copied to parallel workers."""
        with self._chooser.lock:
            self._chooser.reseed()
            self._independent.reseed_rng()

    # --- Optuna's interface ---------------------------------------------------------------------------------

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the distributions of the model's parameters, those with conditions included."""
        sign = trials_of.sign_of(study)
        with self._chooser.lock:
            if trial.number == 0:
                self._chooser.start(study)
            self._chooser.past.check_direction(maximise=sign > 0)
            finished = _finished(study)
            if not finished:
                self._first.add((study.study_name, trial.number))
                return {}
            space = self._chooser.space(study, finished)
            if space is None:
                return {}
            known = trials_of.distributions_in(space, finished)
            self._spaces[study.study_name, trial.number] = space, set(known)
        return known

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return values of all parameters of the search space, chosen jointly."""
        trials_of.sign_of(study)
        if not search_space:
            return {}
        with self._chooser.lock:
            inferred = self._spaces.pop((study.study_name, trial.number), None)
            space = trials_of.space_of(search_space, inferred)
            if space is None:
                return {}
            offer = self._chooser.offer(study, trial, space)
        return decode(search_space, offer.params)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a value of one parameter.

        It comes from past tasks in a new study or a new branch, and else from the independent sampler.
        """
        trials_of.sign_of(study)
        with self._chooser.lock:
            finished = _finished(study)
            # Other trials may have finished since, but a trial that started before them keeps its plan.
            is_first = (study.study_name, trial.number) in self._first or not finished
            has_offer = self._chooser.has_offer(study, trial)
            if is_first or has_offer or self._chooser.space(study, finished) is None:
                planned = self._chooser.planned(study, trial, param_name, param_distribution)
                if planned is not None:
                    return planned[0]
                if is_first and isinstance(self._independent, optuna.samplers.RandomSampler):
                    # A uniform draw before the space is known is equivalent to forced exploration.
                    self._chooser.mark_explored(study, trial)
            # Nothing is known about a parameter that no trial has had yet. One that is in the model is here
            # only if the user has enqueued another branch than the one that was chosen.
            is_new = not any(param_name in one.params for one in finished)
            space = self._chooser.space(study, finished)
            is_known = space is not None and param_name in trials_of.distributions_in(space, finished)
            if self._warns and not is_new and not is_known and not param_distribution.single():
                words = self._why_independent(param_name, param_distribution, finished)
                self._chooser.say(study, "independent", words)
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Call `before_trial` of the independent sampler."""
        self._independent.before_trial(study, trial)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Write the trial to the memory, if there is one."""
        self._independent.after_trial(study, trial, state, values)
        if self._constraints is not None:
            self._constraints.after_trial(study, trial, state, values)
        if len(study.directions) != 1:
            return
        with self._chooser.lock:
            self._first.discard((study.study_name, trial.number))
            self._spaces.pop((study.study_name, trial.number), None)
            self._chooser.finish(study, trial, state, values)

    # --- what the model expects -----------------------------------------------------------------------------

    @front_door
    def explain(self, study: Study, num_trials: int = NUM_AHEAD) -> Explanation:
        """Return what the model thinks of a study by now, as `jlibo.tune.TunerTask.explain` does for a task.

        **Arguments:**

        - `study`: a study that this sampler samples, with at least one complete trial.
        - `num_trials`: the largest number of further trials whose gain is estimated.

        **Returns:**

        A `jlibo.tune.Explanation` in the units of the study's values. Parameters with a `step` have the names
        of the memory.

        **Raises:**

        - `ValueError`: the study has no complete trial with a parameter of the model, or several objectives;
          or `num_trials` is not a positive whole number.
        """
        check_process("LiBOSampler.explain")
        check_count("num_trials", num_trials)
        trials_of.sign_of(study)
        with self._chooser.lock:
            space = self._chooser.space(study, _finished(study))
            if space is None:
                fail("study", "one with a complete trial that has a parameter of the model", "none")
            model, learned = self._chooser.knowledge(study, space)
            own = self._chooser.records(study, space)
            tasks, trials, _ = self._chooser.past.read(study, space)
            seed = (self._chooser.seed, learned.num_tasks)
        return explain_study(
            study,
            model,
            learned,
            own,
            past_of(model, tasks, trials, maximise=True),
            Candidates(model, seed=seed, least=NUM_CANDIDATES),
            budget=self._chooser.settings.budget,
            num_trials=num_trials,
        )

    def _why_independent(
        self, name: str, distribution: BaseDistribution, finished: Sequence[FrozenTrial]
    ) -> str:
        why = "some trials do not have it, and no categorical parameter tells which"
        if len({one.distributions[name] for one in finished if name in one.distributions}) > 1:
            why = "its distribution is not the same in all trials of the study"
        if coded_parameter(name, distribution) is None:
            why = f"its distribution is not supported by the model: {distribution}"
        return (
            f"the parameter {name!r} is sampled by {type(self._independent).__name__}, without the model: "
            f"{why}. This warning appears once per study and applies to all such parameters."
        )


def _finished(study: Study) -> list[FrozenTrial]:
    states = (TrialState.COMPLETE, TrialState.PRUNED)
    return trials_of.whole_study(study).get_trials(deepcopy=False, states=states)
