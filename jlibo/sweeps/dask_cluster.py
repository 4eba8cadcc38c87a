"""Dask clusters for sweeps: one on this machine for its own client alone, or a client of one that runs.

Whoever can connect to a Dask scheduler can run code as the user who started it. A local cluster is therefore
closed to all others, also to other users of the machine:

- scheduler, workers and client speak TLS with a key that exists in their memory only, and refuse all others;
- all of them listen on the loopback interface alone;
- there is no dashboard, nor any other HTTP server.

If the key cannot be made, the cluster is not started.
"""

import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any

import jax

from jlibo.checks import check_count, fail
from jlibo.host_memory import free_host_memory
from jlibo.printable import printable
from jlibo.sweeps.dask_engine import NEEDS_DASK, ClusterError

try:
    import dask.config as dask_config
    from distributed import Client, Nanny, Scheduler, SpecCluster, Worker
    from distributed.security import Security
except ImportError:
    raise ImportError(NEEDS_DASK) from None

HOST = "127.0.0.1"
WORKER_BYTES = 256 * 2**20
"""What a worker takes at least: Python, jax and a compiled program."""


class CredentialsError(RuntimeError):
    """There is no key for a local cluster, and without one it would be open to other users."""


def worker_environment() -> dict[str, str]:
    """What has to be set before a worker imports jax."""
    nproc = os.environ.get("NPROC") or str(max(4, os.cpu_count() or 1))
    answer = {"NPROC": nproc, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if getattr(jax.config, _CACHE_SETTINGS[0]):
        # Whoever keeps compiled programs here shares them: all workers compile the same one.
        for name in _CACHE_SETTINGS:
            answer[name.upper()] = str(getattr(jax.config, name))
    return answer


_CACHE_SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


class ClosedScheduler(Scheduler):
    """A scheduler without an HTTP server.

    `dashboard_address=None` leaves out the pages of the dashboard, but not the server that would show them.
    """

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""


class ClosedWorker(Worker):
    """A worker without an HTTP server."""

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""


def temporary_credentials() -> Security:
    """Return a key that exists only in memory; raises a `CredentialsError` if there cannot be one."""
    try:
        credentials = Security.temporary()
    except ImportError:
        raise CredentialsError(
            "a local Dask cluster needs TLS, or other users of this machine could run code in it: "
            "pip install cryptography, or give the address of a scheduler of your own."
        ) from None
    except Exception as error:
        raise CredentialsError(
            "a local Dask cluster needs TLS, or other users of this machine could run code in it, and no key "
            f"could be made ({type(error).__name__}: {printable(error)})."
        ) from None
    return credentials


def check_num_workers(argument: str, num_workers: int) -> None:
    """Check that so many workers have room in the memory of this machine."""
    check_count(argument, num_workers)
    most = max(1, free_host_memory() // WORKER_BYTES)
    if num_workers > most:
        fail(argument, f"at most {most}, as many as the free memory has room for", num_workers)


@contextlib.contextmanager
def local_client(num_workers: int) -> Iterator[Client]:
    """Yield a client of a new cluster on this machine: processes of one thread, closed to everyone else."""
    check_num_workers("num_workers", num_workers)
    credentials = temporary_credentials()
    settings = {
        "distributed.nanny.pre-spawn-environ": worker_environment(),
        # A chunk is not to blame for the workers that die under it.
        "distributed.scheduler.allowed-failures": 20,
    }
    common = {"host": HOST, "protocol": "tls://", "security": credentials}
    worker = {
        **common,
        "nthreads": 1,
        "memory_limit": 0,  # a chunk is within its budget already; Dask would kill at a limit of its own
        "worker_class": ClosedWorker,
        "silence_logs": logging.CRITICAL,
    }
    with dask_config.set(settings):
        with _interrupts_for_this_process_alone():
            cluster = SpecCluster(
                scheduler={"cls": ClosedScheduler, "options": {**common, "port": 0, "dashboard": False}},
                workers={number: {"cls": Nanny, "options": worker} for number in range(num_workers)},
                security=credentials,
                silence_logs=logging.CRITICAL,  # pyright: ignore[reportArgumentType]
            )
        with cluster, Client(cluster, security=credentials) as client:
            _check_closed(client)
            yield client


@contextlib.contextmanager
def _interrupts_for_this_process_alone() -> Iterator[None]:
    """Let the threads that start in the block, and their child processes, not receive Ctrl-C.

    The keys reach the whole process group. Workers would print tracebacks, while this process closes them
    anyway. It receives what was pressed meanwhile at the end of the block.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Python's multiprocessing unblocks the signal in the thread that starts this helper.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _check_closed(client: Client) -> None:
    """Refuse a cluster that another version of Dask has made with an open door."""
    info = client.scheduler_info(n_workers=-1)
    for address, member in {info["address"]: info, **info["workers"]}.items():
        if not address.startswith(f"tls://{HOST}:") or member["services"]:
            raise ClusterError(
                f"this version of Dask made a local cluster that others can reach ({printable(address)}, "
                f"{printable(member['services'])}): use another, or a scheduler of your own."
            )


@contextlib.contextmanager
def connect(address: str) -> Iterator[Client]:
    """Yield a client of the scheduler at `address`, such as tls://10.0.0.1:8786."""
    with Client(address, timeout="10s") as client:
        yield client
