"""The tests that Optuna publishes for every sampler, run on LiBOSampler.

`MultiObjectiveSamplerTestCase` is left out, because LiBOSampler has one objective;
`SingleOnlySamplerTestCase` checks that it rejects several. The dictionary is small (one cosine per number, no
pairs), so that the hundred spaces of these tests share a few compiled programs; `test_optuna_branches.py`
uses the full one.
"""

from collections.abc import Callable

import pytest

pytest.importorskip("optuna")
pytest.importorskip("optuna.testing.pytest_samplers", reason="Optuna publishes its sampler tests from 4.8 on")

import optuna
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    RelativeSamplerTestCase,
    SingleOnlySamplerTestCase,
)

from jlibo.integrations.optuna.sampler import LiBOSampler

SMALL = {"num_basis": 1, "interactions": False}

pytestmark = pytest.mark.filterwarnings("ignore::jlibo.integrations.optuna.LiBOSamplerWarning")


@pytest.fixture(autouse=True)
def _quiet():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(before)


class TestLiBOSampler(BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Callable[[], LiBOSampler]:
        return lambda: LiBOSampler(seed=0, sizes=SMALL)
