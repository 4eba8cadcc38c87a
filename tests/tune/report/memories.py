"""Memories whose reports are looked at: names that try to break out of the page, and many tasks."""

import math

import numpy as np

import jlibo
from jlibo.tune import Memory

HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'>",
    "\"quoted\" & 'single' $title ${data}",
    "line\nbreak \x1b[31m \u202e right to left \u2028",
)
SPACE = jlibo.SearchSpace(
    {
        "rate": jlibo.Float(1e-4, 1, log=True),
        "<b onclick='window.hacked = 3'>kind</b>": jlibo.Categorical(["tree", "</pre><i>linear</i>", (1, 2)]),
        "depth": jlibo.Int(1, 9, when={"<b onclick='window.hacked = 3'>kind</b>": "tree"}),
    }
)
KIND = SPACE.names[0]


def configs(num: int, seed: int) -> list[dict]:
    points = SPACE.sample_unit(num, rng=np.random.default_rng(seed))
    return [SPACE.from_unit(point) for point in points]


def score(params: dict, shift: float) -> float:
    """Return a score that depends on the rate most, and is best at a rate of 0.01."""
    place = math.log10(params["rate"]) / 4 + 1
    return 3 - 4 * (place - 0.5 - shift) ** 2 + 0.3 * (params[KIND] == "tree")


def hostile_tuner(learner=None, *, maximise: bool = True) -> jlibo.Tuner:
    """Return a tuner with four finished tasks and one without scores, all with hostile names."""
    tuner = jlibo.Tuner(SPACE, maximise=maximise, learner=learner)
    sign = 1 if maximise else -1
    for seed, name in enumerate(HOSTILE):
        own = configs(24, seed)
        scores = [sign * score(params, 0.02 * seed) for params in own]
        tuner.add_task(name, own, [None if place == 3 else one for place, one in enumerate(scores)])
    tuner.task("nothing yet", budget=5)
    return tuner


def many_tasks(num_tasks: int, num_trials: int) -> Memory:
    """Return a memory in RAM with many tasks."""
    tuner = jlibo.Tuner(SPACE)
    for seed in range(num_tasks):
        own = configs(num_trials, seed)
        tuner.add_task(f"data set {seed:03}", own, [score(params, 0.001 * seed) for params in own])
    return tuner.memory
