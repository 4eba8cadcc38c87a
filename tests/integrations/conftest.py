"""Settings of the tests of integrations: Optuna logs nothing, and warnings of LiBOSampler are errors."""

import warnings

import optuna
import pytest

from jlibo.integrations.optuna import LiBOSamplerWarning


@pytest.fixture(autouse=True)
def _quiet():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LiBOSamplerWarning)  # an error unless a test expects it
        yield
    optuna.logging.set_verbosity(before)


@pytest.fixture(scope="module")
def one_thread():
    """Run linear algebra in one thread: for small arrays, threads take more time than they save."""
    import threadpoolctl  # late: it comes with scikit-learn, which not all tests here need

    with threadpoolctl.threadpool_limits(1):
        yield


@pytest.fixture(scope="module")
def flower_settings(tmp_path_factory):
    """Flower's processes look for work five times a second, and share compiled programs, as users' do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.2")
        patch.setenv("JLIBO_CACHE", "1")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("programs")))
        yield
