"""Dask clients for sweeps: of a new private cluster on this machine, or of a running scheduler.

Any process that can connect to a Dask scheduler can run code as the user who started it. A local cluster is
therefore closed to all other processes, including those of other users of the machine:

- scheduler, workers and client use TLS with a key that exists only in their memory, and refuse other peers;
- all of them listen on the loopback interface only;
- there is no dashboard and no other HTTP server.

If the key cannot be created, the cluster is not started.
"""

import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any, final

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
"""Least memory of a worker: Python, jax and a compiled program."""


class CredentialsError(RuntimeError):
    """No TLS key could be created for a local cluster; without one it would be open to other users."""


def worker_environment() -> dict[str, str]:
    """Return the environment variables that have to be set before a worker imports jax."""
    nproc = os.environ.get("NPROC") or str(max(4, os.cpu_count() or 1))
    answer = {"NPROC": nproc, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if getattr(jax.config, _CACHE_SETTINGS[0]):
        # All workers compile the same program, so they share the compilation cache of this process.
        for name in _CACHE_SETTINGS:
            answer[name.upper()] = str(getattr(jax.config, name))
    return answer


_CACHE_SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


@final
class ClosedScheduler(Scheduler):
    """A scheduler without an HTTP server.

    `dashboard_address=None` removes the pages of the dashboard, but not the HTTP server.
    """

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""


@final
class ClosedWorker(Worker):
    """A worker without an HTTP server."""

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""


def temporary_credentials() -> Security:
    """Return a TLS key that exists only in memory; raises a `CredentialsError` if it cannot be created."""
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
    """Check that `num_workers` workers fit into the free memory of this machine."""
    check_count(argument, num_workers)
    most = max(1, free_host_memory() // WORKER_BYTES)
    if num_workers > most:
        fail(argument, f"at most {most}, as many as the free memory has room for", num_workers)


@contextlib.contextmanager
def local_client(num_workers: int) -> Iterator[Client]:
    """Yield a client of a new private cluster on this machine, with `num_workers` one-thread processes."""
    check_num_workers("num_workers", num_workers)
    credentials = temporary_credentials()
    settings = {
        "distributed.nanny.pre-spawn-environ": worker_environment(),
        # A chunk is retried if its worker dies: workers may come and go.
        "distributed.scheduler.allowed-failures": 20,
    }
    common = {"host": HOST, "protocol": "tls://", "security": credentials}
    worker = {
        **common,
        "nthreads": 1,
        "memory_limit": 0,  # chunks respect the memory budget; at its own limit Dask would kill workers
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
    """Block Ctrl-C in threads that start in the block and in their child processes.

    SIGINT is sent to the whole process group. Workers would print tracebacks although this process closes
    them anyway. A SIGINT that arrives during the block is delivered to this process at its end.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Starting the tracker unblocks the signal in the calling thread, so start it before blocking.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _check_closed(client: Client) -> None:
    """Raise a `ClusterError` if this version of Dask made a cluster that other processes can reach."""
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
