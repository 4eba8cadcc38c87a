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

import dataclasses
import os
import secrets
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

try:
    import optuna
except ImportError as error:
    raise ImportError("jlibo.integrations.optuna needs Optuna: pip install 'jlibo[optuna]'") from error

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from jlibo.checks import check_count, fail
from jlibo.front_door import front_door
from jlibo.integrations.optuna import trials as trials_of
from jlibo.integrations.optuna.branches import choose_space
from jlibo.integrations.optuna.explained import explain_study
from jlibo.integrations.optuna.past import MemoryPast, NoPast, StudiesPast
from jlibo.integrations.optuna.space import Coded, coded_parameter, decode, decode_value, encode
from jlibo.tune import arrays, keys, modes
from jlibo.tune.ask import Candidates, next_config, num_forced, prepare_next
from jlibo.tune.explain import NUM_AHEAD, past_of
from jlibo.tune.explanation import Explanation
from jlibo.tune.history import GivenHistory
from jlibo.tune.learning import Learned, has_changed, learn_records, score_counts
from jlibo.tune.memory.memory import Memory
from jlibo.tune.memory.records import TrialRecord
from jlibo.tune.model import Model, make_model
from jlibo.tune.process import check_process
from jlibo.tune.space import candidates
from jlibo.tune.space.space import SearchSpace

DEFAULT_BUDGET = 50
NUM_CANDIDATES = candidates.POOL + candidates.NEARBY
"""Lists of candidates are padded to this length, so that small spaces share a compiled program."""


class LiBOSamplerWarning(UserWarning):
    """A past task is not learned from, or a parameter is not sampled by the model. Once per reason."""


@final
@dataclasses.dataclass(frozen=True)
class _Offer:
    """The configuration chosen for a running trial, in coded names and values."""

    space: SearchSpace
    params: Coded
    is_forced: bool


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
        modes.make_learner(mode)  # raises an error for an unknown mode
        trials_of.check_sources(past_studies, storage)
        if memory is not None and (past_studies is not None or storage is not None):
            fail("memory", "given alone, without `past_studies` or `storage`", "both")
        if defaults is not None and not isinstance(defaults, Mapping):
            fail("defaults", "a mapping from names of parameters to values", type(defaults).__name__)
        if memory is not None:
            self._past = MemoryPast(memory, dict(defaults or {}))
        elif past_studies is not None or storage is not None:
            self._past = StudiesPast(past_studies, storage, dict(defaults or {}))
        else:
            self._past = NoPast()
        self._seed = secrets.randbits(32) if seed is None else seed
        self._mode = mode
        self._budget = budget
        self._sizes = sizes
        self._cache = cache
        self._independent = independent_sampler or optuna.samplers.RandomSampler(seed=seed)
        self._warns = warn_independent_sampling
        self._constraints = trials_of.constraint_writer(constraints_func)
        self._explored: dict[str, dict[int, bool]] = {}
        self._forget()

    def _forget(self) -> None:
        """Reset all state that can be recomputed."""
        self._lock = threading.RLock()
        self._offers: dict[tuple[str, int], _Offer] = {}
        self._spaces: dict[tuple[str, int], tuple[SearchSpace, set[str]]] = {}
        self._chosen: dict[str, tuple[Any, SearchSpace | None]] = {}
        self._first: set[tuple[str, int]] = set()
        self._models: dict[SearchSpace, Model] = {}
        self._learned: dict[SearchSpace, tuple[tuple[Any, ...], dict[int, int], Learned]] = {}
        self._told: set[tuple[str, str]] = set()

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_past", "_seed", "_mode", "_budget", "_sizes", "_cache")
        kept += ("_independent", "_warns", "_constraints")
        with self._lock:
            explored = {name: dict(flags) for name, flags in self._explored.items()}
        return {name: self.__dict__[name] for name in kept} | {"_explored": explored}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def close(self) -> None:
        """Close the memory, unless it was passed as an open `Memory`. It is opened again when needed."""
        self._past.close()

    def reseed_rng(self) -> None:
        """Draw a new seed, as Optuna requires of samplers that are copied to parallel workers."""
        with self._lock:
            self._seed = secrets.randbits(32)
            self._independent.reseed_rng()

    # --- Optuna's interface ---------------------------------------------------------------------------------

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the distributions of the model's parameters, those with conditions included."""
        sign = trials_of.sign_of(study)
        with self._lock:
            if trial.number == 0:
                self._past.renew(study)
                self._explored.pop(study.study_name, None)
            self._past.check_direction(maximise=sign > 0)
            finished = _finished(study)
            if not finished:
                self._first.add((study.study_name, trial.number))
                return {}
            space = self._space(study, finished)
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
        with self._lock:
            inferred = self._spaces.pop((study.study_name, trial.number), None)
            space = trials_of.space_of(search_space, inferred)
            if space is None:
                return {}
            offer = self._offer(study, trial, space)
        return decode(search_space, offer.params)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a value of one parameter.

        It comes from past tasks in a new study or a new branch, and else from the independent sampler.
        """
        trials_of.sign_of(study)
        with self._lock:
            finished = _finished(study)
            # Other trials may have finished since, but a trial that started before them keeps its plan.
            is_first = (study.study_name, trial.number) in self._first or not finished
            has_offer = (study.study_name, trial.number) in self._offers
            if is_first or has_offer or self._space(study, finished) is None:
                planned = self._planned(study, trial, param_name, param_distribution)
                if planned is not None:
                    return planned[0]
                if is_first and isinstance(self._independent, optuna.samplers.RandomSampler):
                    # A uniform draw before the space is known is equivalent to forced exploration.
                    self._explored.setdefault(study.study_name, {}).setdefault(trial.number, True)
            # Nothing is known about a parameter that no trial has had yet. One that is in the model is here
            # only if the user has enqueued another branch than the one that was chosen.
            is_new = not any(param_name in one.params for one in finished)
            space = self._space(study, finished)
            is_known = space is not None and param_name in trials_of.distributions_in(space, finished)
            if self._warns and not is_new and not is_known and not param_distribution.single():
                self._say(
                    study, "independent", self._why_independent(param_name, param_distribution, finished)
                )
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
        with self._lock:
            self._first.discard((study.study_name, trial.number))
            self._spaces.pop((study.study_name, trial.number), None)
            offer = self._offers.pop((study.study_name, trial.number), None)
            flags = self._explored.setdefault(study.study_name, {})
            if offer is None:
                flags.setdefault(trial.number, False)
            else:
                # The user may have enqueued other values than those chosen here.
                coded = encode(trial.distributions, trial.params)
                was_taken = all(coded.get(name, value) == value for name, value in offer.params.items())
                flags[trial.number] = offer.is_forced and was_taken
            explored = {number for number, is_explored in flags.items() if is_explored}
            problem = self._past.add(trials_of.whole_study(study), trial, state, values, explored=explored)
            if problem is not None:
                self._say(study, "past", problem)

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
        with self._lock:
            space = self._space(study, _finished(study))
            if space is None:
                fail("study", "one with a complete trial that has a parameter of the model", "none")
            model, learned = self._knowledge(study, space)
            own = self._records(study, space)
            tasks, trials, _ = self._past.read(study, space)
            seed = (self._seed, learned.num_tasks)
        return explain_study(
            study,
            model,
            learned,
            own,
            past_of(model, tasks, trials, maximise=True),
            Candidates(model, seed=seed, least=NUM_CANDIDATES),
            budget=self._budget,
            num_trials=num_trials,
        )

    # --- choosing a configuration ---------------------------------------------------------------------------

    def _offer(self, study: Study, trial: FrozenTrial, space: SearchSpace) -> _Offer:
        """Choose a configuration of `space` for a trial, and keep it while the trial runs."""
        check_process("LiBOSampler")
        name = study.study_name
        model, learned = self._knowledge(study, space)
        own = [one for one in self._records(study, space) if one.number != trial.number]
        flags = self._explored.setdefault(name, {})
        own = trials_of.with_explored(own, flags, num_forced(model, learned, self._budget))
        history = arrays.trial_arrays(arrays.unit_points(space, own), own)
        # A seed per trial, so that concurrent workers do not get the same configuration.
        seed = (self._seed, learned.num_tasks, trial.number)
        chosen = next_config(
            model,
            learned,
            GivenHistory(history, model.features, maximise=True),
            candidates=Candidates(model, seed=seed, least=NUM_CANDIDATES),
            budget=self._budget,
            key=keys.folded((self._seed, trial.number)),
        )
        offer = _Offer(space, chosen.params, chosen.is_forced)
        self._offers[name, trial.number] = offer
        flags[trial.number] = chosen.is_forced
        return offer

    def _space(self, study: Study, finished: Sequence[FrozenTrial]) -> SearchSpace | None:
        """Return the space of a study, chosen from its finished trials and the past tasks."""
        if not finished:
            return None
        name, stamp = study.study_name, (len(finished), *self._past.stamp(study))
        held = self._chosen.get(name)
        if held is None or held[0] != stamp:
            past = [(task.space, task.configs) for task in self._past.tasks(study)]
            held = stamp, choose_space(trials_of.configs_of(finished), past)
            self._chosen[name] = held
        return held[1]

    def _records(self, study: Study, space: SearchSpace) -> list[TrialRecord]:
        """Return the trials of a study in `space`, with scores signed so that higher is better."""
        name = study.study_name
        offers = {number: offer.params for (owner, number), offer in self._offers.items() if owner == name}
        trials = study.get_trials(deepcopy=False)
        return trials_of.records(trials, space, trials_of.sign_of(study), offers=offers)

    def _planned(
        self, study: Study, trial: FrozenTrial, param_name: str, distribution: BaseDistribution
    ) -> tuple[Any] | None:
        """Return (value,) of a parameter, chosen in the space of past tasks; None if there is no value."""
        pair = coded_parameter(param_name, distribution)
        if pair is None:
            return None
        coded_name, parameter = pair
        offer = self._offers.get((study.study_name, trial.number))
        if offer is None:
            # The space of most past tasks with this parameter. Past tasks may know more branches together
            # than each of them.
            past = [
                (task.space, task.configs)
                for task in self._past.tasks(study)
                if trials_of.has_parameter(task.space, coded_name, parameter)
            ]
            likely = choose_space([], past)
            if likely is None:
                return None
            offer = self._offer(study, trial, likely)
        if not trials_of.has_parameter(offer.space, coded_name, parameter) or coded_name not in offer.params:
            return None
        return (decode_value(distribution, offer.params[coded_name]),)

    def _knowledge(self, study: Study, space: SearchSpace) -> tuple[Model, Learned]:
        """Return the model of a space and what was learned from past tasks; recomputed when these change."""
        if space not in self._models:
            self._models[space] = make_model(
                space, mode=self._mode, sizes=self._sizes, keep_programs=self._cache
            )
        model = self._models[space]
        stamp = self._past.stamp(study)
        held = self._learned.get(space)
        if held is None or held[0] != stamp:
            tasks, trials, problem = self._past.read(study, space)
            if problem is not None:
                self._say(study, "past", problem)
            ids = {task.id for task in tasks}
            counts = score_counts(trial for trial in trials if trial.task_id in ids)
            is_same_study = held is not None and held[0][0] == stamp[0]
            if held is None or not is_same_study or has_changed(held[1], counts):
                prepare_next(model, budget=self._budget, least=NUM_CANDIDATES)
                held = stamp, counts, learn_records(model, tasks, trials, maximise=True)
            self._learned[space] = (stamp, *held[1:])
        return model, self._learned[space][2]

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

    def _say(self, study: Study, topic: str, words: str) -> None:
        if (study.study_name, topic) not in self._told:
            self._told.add((study.study_name, topic))
            warnings.warn(f"study {study.study_name!r}: {words}", LiBOSamplerWarning, stacklevel=3)


def _finished(study: Study) -> list[FrozenTrial]:
    states = (TrialState.COMPLETE, TrialState.PRUNED)
    return trials_of.whole_study(study).get_trials(deepcopy=False, states=states)
