"""Settings of the tests of LiBOSampler: no log messages, and warnings are errors."""

import warnings

import optuna
import pytest

from jlibo.integrations.optuna.sampler import LiBOSamplerWarning


@pytest.fixture(autouse=True)
def _quiet():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LiBOSamplerWarning)  # an error unless a test expects it
        yield
    optuna.logging.set_verbosity(before)
