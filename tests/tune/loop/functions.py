"""Functions that worker processes import and evaluate."""

import os
import signal
from pathlib import Path

import jlibo


class Unpicklable(Exception):
    """An exception that cannot be made again from its arguments."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def parabola(x):
    return -((x - 0.3) ** 2)


def process_id(x, trial):
    trial.report(0, os.getpid())
    return x


def curve(x, trial):
    """Report a straight line; stop when told to."""
    for step in range(6):
        trial.report(step, x + step)
        if trial.should_stop:
            return None
    return x + 5


def troubled(x, trial, *, folder):
    """End in a way that depends on the number of the trial; kill the process of trial 6, the first time."""
    mark = Path(folder) / "died"
    if trial.number == 6 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if trial.number == 1:
        raise Unpicklable("oil", "water")
    if trial.number == 2:
        raise KeyError("missing")
    if trial.number == 3:
        trial.report(-1, x)
    if trial.number == 4:
        raise jlibo.tune.TrialStopped
    if trial.number == 5:
        return {"not": "a number"}
    return x


def deadly(x, trial):
    """Kill every process that evaluates trial 1."""
    if trial.number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def exits(x, trial):
    if trial.number == 2:
        raise SystemExit(7)
    return x


class Undone:
    """A function that can be pickled and not unpickled."""

    def __call__(self, x):
        return x

    def __setstate__(self, state):
        raise RuntimeError("no such luck")

    def __getstate__(self):
        return {"a": 1}
