"""The peers of the AutoML benchmark: Optuna's TPE and Gaussian-process samplers, and BoTorch.

None of them learns from other tasks, so a run depends only on its task and its seed. All peers try
configurations of the table, none twice, and know the kinds of the parameters:

| peer         | use of the table                                                                 |
|--------------|----------------------------------------------------------------------------------|
| `optuna-tpe` | suggests in the space; the nearest configuration not tried yet is tried and told |
| `optuna-gp`  | the same                                                                         |
| `botorch`    | 3 random ones, then the largest log expected improvement among the untried ones  |

All have their default settings; Optuna begins with 10 random trials. BoTorch is given categoricals as
indicators of their choices.
"""

import time
import warnings

import numpy as np

from benchmarks.automl.problem import encode
from jlibo.tune.space.parameters import Categorical, Int, Parameter
from jlibo.tune.space.space import SearchSpace

NEEDS = {
    "optuna-tpe": ("optuna",),
    "optuna-gp": ("optuna", "torch", "scipy"),
    "botorch": ("botorch", "gpytorch", "torch"),
}
"""The packages of each peer."""
BOTORCH_RANDOM = 3


def snap(point: np.ndarray, points: np.ndarray, tried: np.ndarray) -> int:
    """Return the row of the untried configuration nearest to `point`."""
    distance = np.sum((points - point) ** 2, axis=1)
    return int(np.argmin(np.where(tried, np.inf, distance)))


def distribution(parameter: Parameter):
    """Return the Optuna distribution of a parameter; choices are numbered."""
    from optuna import distributions

    if isinstance(parameter, Categorical):
        return distributions.CategoricalDistribution(tuple(range(parameter.num_values)))
    kind = distributions.IntDistribution if isinstance(parameter, Int) else distributions.FloatDistribution
    return kind(parameter.low, parameter.high, log=parameter.log)


def run_optuna(
    kind: str, space: SearchSpace, points: np.ndarray, values: np.ndarray, budget: int, seed: int
) -> list[int]:
    """Run a new study. The suggested trial is closed as failed, which samplers ignore, and the nearest
    configuration of the table is added as a trial."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    samplers = {"optuna-tpe": optuna.samplers.TPESampler, "optuna-gp": optuna.samplers.GPSampler}
    study = optuna.create_study(direction="maximize", sampler=samplers[kind](seed=seed))
    distributions = {name: distribution(parameter) for name, parameter in space.items()}
    encoded = encode(space, points)
    tried, run = np.zeros(len(points), bool), []
    for _ in range(min(budget, len(points))):
        trial = study.ask(distributions)
        units = [float(one.codes_to_unit(np.asarray(trial.params[key]))) for key, one in space.items()]
        row = snap(encode(space, np.array(units)), encoded, tried)
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        params = {
            key: _plain(one, one.unit_to_codes(unit))
            for (key, one), unit in zip(space.items(), points[row], strict=True)
        }
        made = optuna.trial.create_trial(params=params, distributions=distributions, value=float(values[row]))
        study.add_trial(made)
        tried[row] = True
        run.append(row)
    return run


def _plain(parameter: Parameter, code: np.ndarray) -> int | float:
    return int(code) if isinstance(parameter, Categorical | Int) else float(code)


def fitted_gp(points, targets):
    """Return a Gaussian process with BoTorch's default priors on standardised targets [n, 1], fitted."""
    from botorch.exceptions import ModelFittingError
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.models.transforms import Standardize
    from gpytorch.mlls import ExactMarginalLogLikelihood

    model = SingleTaskGP(points, targets, outcome_transform=Standardize(m=1))
    try:
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    except ModelFittingError:
        model.eval()  # with the initial hyper-parameters
    return model


def run_botorch(
    space: SearchSpace, points: np.ndarray, values: np.ndarray, budget: int, seed: int
) -> list[int]:
    """Run a Gaussian process that is refitted at every step, with log expected improvement."""
    import torch
    from botorch.acquisition import LogExpectedImprovement

    torch.manual_seed(seed)
    pool, scores = torch.as_tensor(encode(space, points)), torch.as_tensor(values)[:, None]
    budget = min(budget, len(points))
    run = np.random.default_rng(seed).permutation(len(points))[: min(BOTORCH_RANDOM, budget)].tolist()
    while len(run) < budget:
        model = fitted_gp(pool[run], scores[run])
        with torch.no_grad():
            gain = LogExpectedImprovement(model, best_f=scores[run].max())(pool[:, None, :])
        gain[run] = -torch.inf
        run.append(int(gain.argmax()))
    return run


def run_peer(
    peer: str, space: SearchSpace, points: np.ndarray, values: np.ndarray, budget: int, seed: int
) -> tuple[list[int], float]:
    """Return the rows that a peer tries on one task, in order, and the elapsed seconds."""
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if peer == "botorch":
            run = run_botorch(space, points, values, budget, seed)
        else:
            run = run_optuna(peer, space, points, values, budget, seed)
    return run, time.perf_counter() - start
