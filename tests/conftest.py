"""Settings of the test suite, made before jax is imported, so that they apply to all tests and workers."""

import ctypes
import functools
import gc
import importlib.metadata
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# As many concurrent executions as XLA has pool threads can deadlock jax 0.10 on CPU: keep the pool larger.
os.environ.setdefault("NPROC", str(max(4, os.cpu_count() or 1)))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("JLIBO_CACHE", "0")  # programs of the tests are not for the user
# Most of the suite's time is the compilation of programs that run for milliseconds. Without optimisation it
# takes a third of the time. `make test-slow` sets XLA_FLAGS to the empty string: its programs are
# compiled as for users.
QUICK_COMPILATION = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
if importlib.metadata.version("jaxlib").startswith("0.10."):  # an unknown flag aborts the process
    QUICK_COMPILATION += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    # A quarter of the rest is a check of the compiler by itself, and optimisation of loops.
    QUICK_COMPILATION += " --xla_disable_hlo_passes=hlo-verifier,simplify-while-loops"
    QUICK_COMPILATION += ",while-loop-invariant-code-motion,while-loop-constant-sinking"
os.environ.setdefault("XLA_FLAGS", QUICK_COMPILATION)
os.environ.setdefault("NUMBA_OPT", "1")  # skglm, a peer of the solver, is compiled by numba in slow tests

# A suite started in the background ignores SIGINT, which the processes started by tests would inherit.
if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):
    signal.signal(signal.SIGINT, signal.default_int_handler)

import chex
import hypothesis
import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jlibo.programs import programs

jax.config.update("jax_platforms", os.environ["JAX_PLATFORMS"])  # also if a plugin imported jax earlier
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_compilation_cache_dir", None)  # overrides the environment variable
jax.config.update("jax_numpy_dtype_promotion", "standard")  # third parties need it; see `strict_promotion`
jax.config.update("jax_traceback_in_locations_limit", 0)  # programs are lowered faster without line numbers

# Tracing makes many long-lived objects, which the default thresholds visit again and again.
gc.collect()
gc.freeze()
gc.set_threshold(20_000, 50, 50)

hypothesis.settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("thorough", hypothesis.settings.get_profile("ci"), max_examples=500)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


# Bytes of a worker above which compiled programs are dropped: after a module, which starts with fixtures of
# its own, and after any test. About a gigabyte stays, dropping takes two seconds of processor time, and one
# test adds at most half a gigabyte.
MODULE_MEMORY_LIMIT = 1_750_000_000
TEST_MEMORY_LIMIT = 2_000_000_000


LONG_FILES = (
    "test_docs.py",
    "tune/test_explain.py",
    "contracts/test_lifelong.py",
    "test_notebooks.py",
    "tune/test_ask.py",
    "meta/test_meta.py",
    "experiments/test_experiments.py",
    "experiments/test_theory.py",
    "cli/test_cli.py",
    "tune/test_fuzz.py",
    "lifelong/test_units.py",
    "test_lowering.py",
    "tune/test_stopping.py",
    "sweeps/test_engines.py",
    "tune/test_load.py",
    "tune/test_memory_processes.py",
    "contracts/test_functions.py",
    "tune/test_trajectory.py",
    "integrations/test_optuna.py",
    "tune/test_tuner_processes.py",
)
"""The files that take longest. They run first, so that no worker is left with one of them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the files of `LONG_FILES` to the front; the order is kept otherwise."""
    folder = Path(__file__).parent
    places = {folder / name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@dataclass
class TraceCounter:
    """Number of times that a function's Python body has run: under `jit`, the number of traces."""

    count: int = 0


def count_traces(fn: Callable[..., Any]) -> tuple[Callable[..., Any], TraceCounter]:
    """Return a wrapped `fn`, to be passed to `jax.jit`, and a counter of its traces.

    `chex.assert_max_traces` is enough for an upper limit. This counts exactly, so that a test can compare
    before and after, and wraps objects without source code, such as a `partial`.
    """
    counter = TraceCounter()

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        counter.count += 1
        return fn(*args, **kwargs)

    return wrapped, counter


@pytest.fixture(name="count_traces", scope="session")
def _count_traces() -> Callable[..., tuple[Callable[..., Any], TraceCounter]]:
    return count_traces


@pytest.fixture(autouse=True)
def _new_trace_counts() -> None:
    """Reset the counts of `chex.assert_max_traces`, which are by source code, across parametrised tests."""
    chex.clear_trace_counter()


@pytest.fixture(autouse=True)
def _no_compilation_cache() -> Iterator[None]:
    """Undo the settings of the command line in this process: later tests must not write to its cache."""
    yield
    if jax.config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()


def _resident_bytes() -> int:
    """This process's resident memory, or 0 where /proc does not exist."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _bound_memory(limit: int) -> None:
    """Drop compiled programs if this process has more resident memory than `limit` bytes.

    jax keeps every compiled program for the life of the process. A whole suite of them takes gigabytes and
    more memory mappings than Linux allows a process (65,530), after which the compiler crashes.
    """
    if _resident_bytes() > limit:
        jax.clear_caches()
        programs.forget()
        gc.collect()
        if hasattr(ctypes.CDLL(None), "malloc_trim"):  # glibc keeps freed memory otherwise
            ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(autouse=True, scope="module")
def _bounded_memory_after_modules() -> Iterator[None]:
    yield
    _bound_memory(MODULE_MEMORY_LIMIT)


@pytest.fixture(autouse=True)
def _bounded_memory_after_tests() -> Iterator[None]:
    yield
    _bound_memory(TEST_MEMORY_LIMIT)


@pytest.fixture
def strict_promotion() -> Iterator[None]:
    """Raise an error on implicit promotion of dtype or rank within the test."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield
