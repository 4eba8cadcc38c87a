"""The tuner without a past and with many parameters, with the default dictionary."""

import functools
import warnings

import numpy as np
import pytest

import jlibo
from jlibo.tune.model import make_model
from jlibo.tune.space.dictionary import MANY_FEATURES

DIM, NUM_TRIALS, SEEDS = 8, 20, (0, 1, 2)


def make_space(dim):
    return jlibo.SearchSpace({f"x{place:02}": jlibo.Float(0, 1) for place in range(dim)})


def peak(points, seed):
    """A quadratic whose maximum is away from the corners."""
    rng = np.random.default_rng((seed, points.shape[-1]))
    centre, widths = rng.uniform(0.2, 0.8, (2, points.shape[-1]))
    return -(widths * (points - centre) ** 2).sum(-1)


def play(task, space, seed, num_trials):
    """Ask and tell; return the points."""
    points = []
    for _ in range(num_trials):
        trial = task.ask()
        points.append([trial.params[name] for name in space])
        task.tell(trial, float(peak(np.asarray(points[-1]), seed)))
    return np.asarray(points)


@functools.cache
def first_tasks():
    """The points of a first task of each seed."""
    space = make_space(DIM)
    tuners = [jlibo.Tuner(space, seed=seed) for seed in SEEDS]
    return [
        play(tuner.task("first", budget=NUM_TRIALS), space, seed, NUM_TRIALS)
        for seed, tuner in zip(SEEDS, tuners, strict=True)
    ]


@pytest.mark.parametrize("dim", [8, 16, 30])
def test_default_dictionary_is_small_and_gives_no_warning(dim):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for mode in ("adaptive", "paper"):
            model = make_model(make_space(dim), mode=mode)
            assert model.features.num_features <= MANY_FEATURES
            groups = {name for name in model.names if name in model.space}
            assert len(groups) == dim  # every parameter has a main effect


def test_first_trials_do_not_walk_the_corners():
    """Uniform draws have a fifth of their coordinates in the outer tenths of the box."""
    points = np.concatenate(first_tasks())
    assert ((points < 0.1) | (points > 0.9)).mean() < 0.3


def test_first_task_is_no_worse_than_random_search():
    ours, random = [], []
    for seed, points in zip(SEEDS, first_tasks(), strict=True):
        draws = np.random.default_rng(seed).uniform(size=(500, NUM_TRIALS, DIM))
        random.append(np.maximum.accumulate(peak(draws, seed), axis=1).mean(0))
        ours.append(np.maximum.accumulate(peak(points, seed)))
    gain = np.mean(ours, axis=0) - np.mean(random, axis=0)
    assert gain[-1] > 0 and gain[9] > 0


@pytest.mark.slow
@pytest.mark.parametrize("dim", [16, 30])
def test_second_task_with_many_parameters_gains_from_the_first_ones(dim):
    space = make_space(dim)
    tuner = jlibo.Tuner(space, seed=0)
    rng = np.random.default_rng(0)
    for number in range(6):
        points = rng.uniform(size=(60, dim))
        configs = [dict(zip(space, map(float, point), strict=True)) for point in points]
        tuner.add_task(f"past {number}", configs, (peak(points, 0) + 0.1 * number).tolist())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        points = play(tuner.task("new", budget=10), space, 0, 10)
    draws = peak(rng.uniform(size=(2000, 10, dim)), 0)
    assert peak(points, 0)[0] > np.quantile(draws, 0.9)
    assert peak(points, 0).max() > np.quantile(draws.max(axis=1), 0.9)
