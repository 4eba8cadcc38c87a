"""The garbage collector is paused while a function is traced, and runs again afterwards."""

import gc

import jax
import jax.numpy as jnp
import pytest

from jlibo.programs.collector import collector_paused
from jlibo.sweeps.points import as_points
from jlibo.sweeps.program import trace


def test_collector_runs_again_also_after_an_error():
    assert gc.isenabled()
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), collector_paused():
        raise KeyError
    assert gc.isenabled()


def test_collector_that_does_not_run_is_not_started():
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_collector_is_paused_while_a_function_is_traced():
    seen = []

    def run(key):
        seen.append(gc.isenabled())
        return {"value": jnp.zeros(())}

    trace(run, as_points(None), jax.random.key(0))
    assert seen and not any(seen)
    assert gc.isenabled()
