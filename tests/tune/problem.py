"""A tuning problem of two parameters, with past tasks, for the tests of the tuner."""

import numpy as np

import jlibo
from jlibo.tune.space.space import Float, SearchSpace

SPACE = SearchSpace(alpha=Float(0, 1), beta=Float(1e-3, 1e3, log=True))
POINTS = SPACE.sample_unit(40, rng=np.random.default_rng(0))
CONFIGS = [SPACE.from_unit(point) for point in POINTS]
BUDGET = 30
SIZES = {"num_basis": 3, "num_pair_basis": 2}
"""A small dictionary, for tests that are not about the dictionary. All of them share compiled programs."""


def make_tuner(**options):
    """Return a tuner with the small dictionary."""
    return jlibo.Tuner(SPACE, **{"sizes": SIZES, **options})


def score(params, peak=1.0, height=1.0):
    """Return a score with its maximum at beta = 10**peak, and a weak effect of alpha."""
    return height * (1 - (np.log10(params["beta"]) - peak) ** 2 / 9 - 0.02 * (params["alpha"] - 0.5) ** 2)


def teach(tuner, num_tasks=3, fn=score):
    """Add past tasks that are similar but not equal."""
    for number in range(num_tasks):
        scores = [fn(params, 0.8 + 0.2 * number) for params in CONFIGS[:20]]
        tuner.add_task(f"past {number}", CONFIGS[:20], scores)


def play(task, num_trials, fn=score):
    """Ask and tell; return the suggested parameters."""
    asked = []
    for _ in range(num_trials):
        trial = task.ask()
        asked.append(trial.params)
        task.tell(trial, fn(trial.params))
    return asked
