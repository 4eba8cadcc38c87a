"""How the sampler chooses a configuration for a running trial. Internal; see `LiBOSampler`.

| Optuna          | here                                                                                  |
|-----------------|---------------------------------------------------------------------------------------|
| a study         | a task, in the space that its finished trials and the past tasks show                 |
| a running trial | an offer: the configuration chosen for it, kept until the trial has ended             |
| a new study     | an offer in the space of the past tasks, whose values are used where parameters agree |
"""

import dataclasses
import secrets
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, final

from optuna.distributions import BaseDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from jlibo.integrations.optuna import trials as trials_of
from jlibo.integrations.optuna.branches import choose_space
from jlibo.integrations.optuna.past import AbstractPast
from jlibo.integrations.optuna.space import Coded, coded_parameter, decode_value, encode
from jlibo.tune import arrays, keys
from jlibo.tune.ask import Candidates, next_config, num_forced, prepare_next
from jlibo.tune.history import GivenHistory
from jlibo.tune.learning import Learned, has_changed, learn_records, score_counts
from jlibo.tune.memory.records import TrialRecord
from jlibo.tune.model import Model, make_model
from jlibo.tune.process import check_process
from jlibo.tune.space import candidates
from jlibo.tune.space.space import SearchSpace

NUM_CANDIDATES = candidates.POOL + candidates.NEARBY
"""Lists of candidates are padded to this length, so that small spaces share a compiled program."""


class LiBOSamplerWarning(UserWarning):
    """A past task is not learned from, or a parameter is not sampled by the model. Once per reason."""


@final
@dataclasses.dataclass(frozen=True)
class Offer:
    """The configuration chosen for a running trial, in coded names and values."""

    space: SearchSpace
    params: Coded
    is_forced: bool


@final
@dataclasses.dataclass(frozen=True)
class Settings:
    """The arguments of the sampler that determine its models."""

    mode: str
    budget: int
    sizes: Mapping[str, Any] | None
    keep_programs: bool


@final
class Chooser:
    """The models of a sampler, and what it chose for the trials that are running.

    A copy by pickle keeps `past`, `seed` and which trials were forced exploration; the rest is computed anew.
    Callers hold `lock`.
    """

    def __init__(self, past: AbstractPast, seed: int, settings: Settings):
        self.past = past
        self.seed = seed
        self.settings = settings
        self._explored: dict[str, dict[int, bool]] = {}
        self._forget()

    def _forget(self) -> None:
        """Reset all state that can be recomputed."""
        self.lock = threading.RLock()
        self._offers: dict[tuple[str, int], Offer] = {}
        self._spaces: dict[str, tuple[Any, SearchSpace | None]] = {}
        self._models: dict[SearchSpace, Model] = {}
        self._learned: dict[SearchSpace, tuple[tuple[Any, ...], dict[int, int], Learned]] = {}
        self._told: set[tuple[str, str]] = set()

    def __getstate__(self) -> dict[str, Any]:
        with self.lock:
            explored = {name: dict(flags) for name, flags in self._explored.items()}
        kept = ("past", "seed", "settings")
        return {name: self.__dict__[name] for name in kept} | {"_explored": explored}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def reseed(self) -> None:
        """Draw a new seed."""
        self.seed = secrets.randbits(32)

    def start(self, study: Study) -> None:
        """Discard what is known of an earlier study of this name, because `study` starts."""
        self.past.renew(study)
        self._explored.pop(study.study_name, None)

    def has_offer(self, study: Study, trial: FrozenTrial) -> bool:
        """Return whether a configuration was chosen for the trial."""
        return (study.study_name, trial.number) in self._offers

    def offer(self, study: Study, trial: FrozenTrial, space: SearchSpace) -> Offer:
        """Choose a configuration of `space` for a trial, and keep it while the trial runs."""
        check_process("LiBOSampler")
        name = study.study_name
        model, learned = self.knowledge(study, space)
        own = [one for one in self.records(study, space) if one.number != trial.number]
        flags = self._explored.setdefault(name, {})
        own = trials_of.with_explored(own, flags, num_forced(model, learned, self.settings.budget))
        history = arrays.trial_arrays(arrays.unit_points(space, own), own)
        # A seed per trial, so that concurrent workers do not get the same configuration.
        seed = (self.seed, learned.num_tasks, trial.number)
        chosen = next_config(
            model,
            learned,
            GivenHistory(history, model.features, maximise=True),
            candidates=Candidates(model, seed=seed, least=NUM_CANDIDATES),
            budget=self.settings.budget,
            key=keys.folded((self.seed, trial.number)),
        )
        offer = Offer(space, chosen.params, chosen.is_forced)
        self._offers[name, trial.number] = offer
        flags[trial.number] = chosen.is_forced
        return offer

    def space(self, study: Study, finished: Sequence[FrozenTrial]) -> SearchSpace | None:
        """Return the space of a study, chosen from its finished trials and the past tasks."""
        if not finished:
            return None
        name, stamp = study.study_name, (len(finished), *self.past.stamp(study))
        held = self._spaces.get(name)
        if held is None or held[0] != stamp:
            past = [(task.space, task.configs) for task in self.past.tasks(study)]
            held = stamp, choose_space(trials_of.configs_of(finished), past)
            self._spaces[name] = held
        return held[1]

    def records(self, study: Study, space: SearchSpace) -> list[TrialRecord]:
        """Return the trials of a study in `space`, with scores signed so that higher is better."""
        name = study.study_name
        offers = {number: offer.params for (owner, number), offer in self._offers.items() if owner == name}
        trials = study.get_trials(deepcopy=False)
        return trials_of.records(trials, space, trials_of.sign_of(study), offers=offers)

    def planned(
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
                for task in self.past.tasks(study)
                if trials_of.has_parameter(task.space, coded_name, parameter)
            ]
            likely = choose_space([], past)
            if likely is None:
                return None
            offer = self.offer(study, trial, likely)
        if not trials_of.has_parameter(offer.space, coded_name, parameter) or coded_name not in offer.params:
            return None
        return (decode_value(distribution, offer.params[coded_name]),)

    def knowledge(self, study: Study, space: SearchSpace) -> tuple[Model, Learned]:
        """Return the model of a space and what was learned from past tasks; recomputed when these change."""
        if space not in self._models:
            self._models[space] = make_model(
                space,
                mode=self.settings.mode,
                sizes=self.settings.sizes,
                keep_programs=self.settings.keep_programs,
            )
        model = self._models[space]
        stamp = self.past.stamp(study)
        held = self._learned.get(space)
        if held is None or held[0] != stamp:
            tasks, trials, problem = self.past.read(study, space)
            if problem is not None:
                self.say(study, "past", problem)
            ids = {task.id for task in tasks}
            counts = score_counts(trial for trial in trials if trial.task_id in ids)
            is_same_study = held is not None and held[0][0] == stamp[0]
            if held is None or not is_same_study or has_changed(held[1], counts):
                prepare_next(model, budget=self.settings.budget, least=NUM_CANDIDATES)
                held = stamp, counts, learn_records(model, tasks, trials, maximise=True)
            self._learned[space] = (stamp, *held[1:])
        return model, self._learned[space][2]

    def mark_explored(self, study: Study, trial: FrozenTrial) -> None:
        """Count the trial as forced exploration, unless more is known about it."""
        self._explored.setdefault(study.study_name, {}).setdefault(trial.number, True)

    def finish(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Forget the offer of a trial that has ended, and add the trial to the past."""
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
        problem = self.past.add(trials_of.whole_study(study), trial, state, values, explored=explored)
        if problem is not None:
            self.say(study, "past", problem)

    def say(self, study: Study, topic: str, words: str) -> None:
        """Warn once per study and topic."""
        if (study.study_name, topic) not in self._told:
            self._told.add((study.study_name, topic))
            warnings.warn(f"study {study.study_name!r}: {words}", LiBOSamplerWarning, stacklevel=3)
