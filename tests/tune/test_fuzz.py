"""Random spaces and random scores: for any scores, the next configuration is in the space.

There are two kinds of space with arbitrary ranges; spaces of one kind share compiled programs. One kind runs
in float32, the default of jax, the other in float64.
"""

import math

import jax
import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

import jlibo
from jlibo.tune.space.space import Categorical, Float, Int, SearchSpace

SIZES = {"interactions": False, "num_basis": 4, "num_joint": 32}
"""The groups of the default dictionary, with fewer features."""
NAMES = st.lists(
    st.text("abc 1x", min_size=1, max_size=6).filter(str.strip), min_size=3, max_size=3, unique=True
)
ODD = [0.0, -0.0, 1.0, 1e300, -1e300, 1.7e308, -1.7e308, 5e-324, 1e-300, 0.1 + 0.2, math.nan, math.inf]
NUMBERS = st.floats(width=64) | st.floats(-1, 1) | st.sampled_from([*ODD, -math.inf])


@st.composite
def scores(draw, max_size):
    """Arbitrary, tied, equal or ordinary scores; each also with a huge or tiny scale or a large shift."""
    size = draw(st.integers(0, max_size))
    some = draw(
        st.sampled_from(
            [
                st.lists(NUMBERS, min_size=size, max_size=size),
                st.lists(st.sampled_from([1.0, 2.0, math.nan]), min_size=size, max_size=size),
                NUMBERS.map(lambda number: [number] * size),
                st.lists(st.floats(-1, 1), min_size=size, max_size=size),
            ]
        )
    )
    factor = draw(st.sampled_from([1.0, 1e-8, 1e8, 1e-200, 1e200]))
    shift = draw(st.sampled_from([0.0, 0.0, 1e6, -1e12]))
    return [number * factor + shift for number in draw(some)]


@st.composite
def numbers(draw):
    if draw(st.booleans()):
        low = 10.0 ** draw(st.floats(-300, 299))
        return Float(low, low * 10 ** draw(st.floats(1e-3, 8)), log=True)
    low = draw(st.floats(-1e150, 1e150))
    return Float(low, low + max(abs(low), 1e-3) * 10 ** draw(st.floats(-6, 3)))


@st.composite
def whole_numbers(draw):
    log = draw(st.booleans())
    low = draw(st.integers(1 if log else -(10**9), 10**9))
    return Int(low, low + draw(st.integers(1100, 10**9)), log=log)


CHOICES = st.lists(st.text(max_size=3) | st.integers() | st.booleans() | st.none(), min_size=3, max_size=3)


@st.composite
def plain_spaces(draw):
    return SearchSpace(dict(zip(draw(NAMES)[:2], [draw(numbers()), draw(numbers())], strict=True)))


@st.composite
def mixed_spaces(draw):
    names = sorted(draw(NAMES))  # so that the kinds come in the same order
    choices = draw(CHOICES.filter(lambda values: len({(type(v), v) for v in values}) == 3))
    kinds = [draw(numbers()), draw(whole_numbers()), Categorical(choices)]
    return SearchSpace(dict(zip(names, kinds, strict=True)))


def check_inside(space, params):
    assert space.validate(params) == params
    assert all(math.isfinite(value) for value in params.values() if isinstance(value, float))


def tune(space, past, own, maximise, seed):
    note(f"{space!r} {past} {own} {maximise} {seed}")
    rng = np.random.default_rng(seed)
    tuner = jlibo.Tuner(space, maximise=maximise, seed=seed, sizes=SIZES)
    for number, told in enumerate(past):
        configs = [space.from_unit(rng.uniform(size=len(space))) for _ in told]
        tuner.add_task(f"past {number}", configs, told)
    task = tuner.task("new", budget=16)
    for score in own:
        trial = task.ask()
        check_inside(space, trial.params)
        task.tell(trial, score)
    for trial in task.ask(3):
        check_inside(space, trial.params)
    importance = tuner.importance()
    assert all(math.isfinite(share) and share >= 0 for share in importance.values())
    assert not importance or sum(importance.values()) == pytest.approx(1)


@given(plain_spaces(), st.lists(scores(8), max_size=3), scores(10), st.booleans(), st.integers(0, 99))
def test_suggestions_are_in_the_space_for_any_scores_in_float32(space, past, own, maximise, seed):
    with jax.enable_x64(False):
        tune(space, past, own, maximise, seed)


@given(mixed_spaces(), st.lists(scores(8), max_size=3), scores(10), st.booleans(), st.integers(0, 99))
def test_suggestions_are_in_the_space_for_any_scores_in_float64(space, past, own, maximise, seed):
    tune(space, past, own, maximise, seed)
