"""What the model of the sampler thinks of a study. Internal; see `LiBOSampler.explain`."""

import dataclasses
from collections.abc import Sequence

from optuna.study import Study

from jlibo.integrations.optuna.trials import sign_of
from jlibo.tune import arrays
from jlibo.tune.ask import Candidates
from jlibo.tune.explain import Past, Setting, explain_task
from jlibo.tune.explanation import Explanation
from jlibo.tune.history import GivenHistory
from jlibo.tune.learning import Learned
from jlibo.tune.memory.records import TrialRecord
from jlibo.tune.model import Model
from jlibo.tune.trial import Trial


def explain_study(
    study: Study,
    model: Model,
    learned: Learned,
    own: Sequence[TrialRecord],
    past: Past | None,
    candidates: Candidates,
    *,
    budget: int,
    num_trials: int,
) -> Explanation:
    """Return the explanation of a study, in the units of its values.

    In `own`, the trials of the study, higher scores are better.
    """
    sign = sign_of(study)
    found = arrays.trial_arrays(arrays.unit_points(model.space, own), own)
    found = dataclasses.replace(found, scores=sign * found.scores)
    params = {trial.number: trial.params for trial in study.get_trials(deepcopy=False)}

    def trial_at(place: int) -> Trial:
        number = own[place].number
        return Trial(number, number, dict(params[number]), float(found.scores[place]), own[place].explored)

    history = GivenHistory(found, model.features, maximise=sign > 0)
    setting = Setting(model, learned, history, candidates, budget)
    return explain_task(setting, past, name=study.study_name, num_trials=num_trials, trial_at=trial_at)
