"""Dask: a local cluster accepts only its own client, and a lost cluster gives a one-line error."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time

import pytest

from tests.sweeps.sweep_jobs import run_quick
from tests.sweeps.test_folder import CONFIG, JOBS, contents

distributed = pytest.importorskip("distributed")
pytest.importorskip("cryptography")

from distributed.comm import CommClosedError  # noqa: E402

from jlibo import cli  # noqa: E402
from jlibo.sweeps import dask_cluster  # noqa: E402
from jlibo.sweeps.dask_engine import ClusterError  # noqa: E402

ENVIRONMENT = os.environ | {"NPROC": "12", "JAX_PLATFORMS": "cpu"}


def listening(pids: set[int]) -> set[tuple[str, int]]:
    """Address and port of every listening TCP socket of these processes, from /proc."""
    inodes = set()
    for pid in pids:
        for handle in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{handle}")
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}") as file:
            for line in list(file)[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    address, port = fields[1].split(":")
                    if table == "tcp":
                        address = socket.inet_ntoa(bytes.fromhex(address)[::-1])
                    found.add((address, int(port, 16)))
    return found


@pytest.fixture(scope="module")
def cluster():
    with dask_cluster.local_client(1) as client:
        yield client


def test_local_cluster_uses_tls_on_the_loopback_interface(cluster):
    info = cluster.scheduler_info(n_workers=-1)
    addresses = [info["address"], *info["workers"], *(one["nanny"] for one in info["workers"].values())]
    assert len(addresses) == 3
    assert all(address.startswith("tls://127.0.0.1:") for address in addresses)
    assert cluster.submit(sum, [1, 2]).result(timeout=60) == 3


async def identity(address: str, connection_args: dict) -> dict:
    """Connect to a member of a cluster and request its identity."""
    comm = await distributed.core.connect(address, timeout=5, **connection_args)
    try:
        return await distributed.core.send_recv(comm, op="identity")
    finally:
        comm.abort()


def test_other_clients_cannot_connect_to_scheduler_worker_or_nanny(cluster):
    """Refused without TLS, with TLS but no key, and with a key of another client."""
    info = cluster.scheduler_info(n_workers=-1)
    no_key = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    no_key.check_hostname, no_key.verify_mode = False, ssl.CERT_NONE
    own = cluster.security.get_connection_args("client")
    stranger = distributed.Security.temporary().get_connection_args("client")
    nannies = [one["nanny"] for one in info["workers"].values()]
    for address in (info["address"], *info["workers"], *nannies):
        assert cluster.sync(identity, address, own)["type"]
        plain = address.replace("tls://", "tcp://")
        for where, given in ((plain, {}), (address, stranger), (address, own | {"ssl_context": no_key})):
            with pytest.raises(OSError):  # noqa: PT011  (each fails in its own way)
                cluster.sync(identity, where, given)
    assert cluster.submit(sum, [3, 4]).result(timeout=60) == 7  # the cluster still works


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="needs /proc")
def test_no_dashboard_and_no_other_http_server_listens(cluster):
    info = cluster.scheduler_info(n_workers=-1)
    members = [info["address"], *info["workers"], *(one["nanny"] for one in info["workers"].values())]
    expected = {("127.0.0.1", int(address.rsplit(":", 1)[1])) for address in members}
    workers = set(cluster.run(os.getpid).values())
    # This process may listen for other tests; the worker's process belongs to the cluster only.
    assert listening(workers) <= expected
    assert not any(port == 8787 for _, port in listening({os.getpid()}))
    assert all(not one["services"] for one in (info, *info["workers"].values()))


def test_local_cluster_is_not_started_without_credentials(monkeypatch, tmp_path, capsys):
    started = []
    monkeypatch.setattr(dask_cluster, "SpecCluster", lambda **_: started.append(1))
    (tmp_path / "config.toml").write_text(CONFIG)
    command = ["sweep", str(tmp_path / "config.toml"), "--no-cache", "--dask", "local", "--workers", "1"]
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert cli.main(command) == 2
    said = capsys.readouterr().err
    assert "pip install cryptography" in said and said.count("\n") == 1

    def broken():
        raise OSError("no entropy")

    monkeypatch.setattr(dask_cluster.Security, "temporary", broken)
    with pytest.raises(dask_cluster.CredentialsError, match="no entropy"), dask_cluster.local_client(1):
        pass
    assert not started


def test_local_cluster_with_a_dashboard_is_refused():
    class Open:
        def scheduler_info(self, **_):
            return {"address": "tls://127.0.0.1:1", "services": {"dashboard": 8787}, "workers": {}}

    with pytest.raises(dask_cluster.ClusterError, match="others can reach"):
        dask_cluster._check_closed(Open())  # pyright: ignore[reportArgumentType]


def wait_for(condition, process=None, seconds=120):
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        assert process is None or process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    raise AssertionError("it did not happen")


@pytest.fixture
def processes():
    """Processes that a test starts; they are killed when it ends."""
    started = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def open_cluster(processes, tmp_path):
    """A scheduler and a worker in separate processes: returns the scheduler and its address."""
    file = tmp_path / "scheduler.json"
    here = ["--scheduler-file", str(file), "--host", "127.0.0.1", "--no-dashboard"]
    for words in (["scheduler", "--port", "0"], ["worker", "--nthreads", "1", "--no-nanny"]):
        command = [sys.executable, "-m", "dask", *words, *here]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        processes.append(subprocess.Popen(command, env=ENVIRONMENT, **quiet))
        wait_for(file.exists)
    return processes[0], json.loads(file.read_text())["address"]


class LostFuture:
    """A future of a lost cluster, failing in one of the ways in which Dask reports it."""

    def __init__(self, status: str, error: BaseException | None = None):
        self.status, self.error = status, error

    def result(self):
        raise self.error or AssertionError("there is no result to ask for")

    def exception(self):
        return self.error


@pytest.mark.parametrize(
    ("future", "kind", "message"),
    [
        (
            LostFuture("cancelled"),
            ClusterError,
            r"scheduler was lost \(a chunk was cancelled\)\. .* to resume",
        ),
        (LostFuture("lost"), ClusterError, "a chunk was lost"),
        (LostFuture("finished", CommClosedError("gone")), ClusterError, "lost .CommClosedError"),
        (LostFuture("finished", TimeoutError()), ClusterError, "lost .TimeoutError"),
        # Errors of the user's function on a worker are raised unchanged.
        (LostFuture("error", FileNotFoundError("data.csv")), FileNotFoundError, "data.csv"),
    ],
)
def test_lost_cluster_raises_cluster_error(future, kind, message, monkeypatch, tmp_path):
    class Client(distributed.Client):  # never connected
        status = "closed"

        def __init__(self):
            pass

        def submit(self, *_, **__):
            return future

        def scheduler_info(self, **_):
            return {"workers": {}}

        def cancel(self, _):
            raise AssertionError("there is no user to ask")

    monkeypatch.setattr(distributed, "as_completed", iter)
    with pytest.raises(kind, match=message):
        run_quick(out=tmp_path / "out", chunk=66, client=Client())


@pytest.mark.slow
def test_killed_scheduler_raises_one_error_and_the_sweep_resumes(open_cluster, tmp_path):
    scheduler, address = open_cluster
    out = tmp_path / "out"
    job = [sys.executable, str(JOBS), "lost", str(out), address, str(scheduler.pid)]
    lost = subprocess.run(job, env=ENVIRONMENT, capture_output=True, text=True, timeout=250)
    assert lost.returncode == 0, lost.stderr
    assert 3 <= len(list(out.glob("chunks/*.chunk"))) < 66
    for folder in (out, tmp_path / "alone"):
        subprocess.run([sys.executable, str(JOBS), "folder", str(folder)], env=ENVIRONMENT, check=True)
    assert contents(out) == contents(tmp_path / "alone")


@pytest.mark.slow
def test_command_reports_a_lost_scheduler_in_one_line(open_cluster, processes, tmp_path):
    scheduler, address = open_cluster
    (tmp_path / "config.toml").write_text(CONFIG)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "jlibo.cli", "sweep", str(tmp_path / "config.toml")]
    environment = ENVIRONMENT | {"JLIBO_CACHE": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    sweep = subprocess.Popen(
        [*command, "--out", str(out), "--dask", address],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    processes.append(sweep)
    wait_for(lambda: len(list(out.glob("chunks/*.chunk"))) >= 3, sweep)
    scheduler.send_signal(signal.SIGKILL)
    said = sweep.communicate(timeout=200)[1]
    assert sweep.returncode == 1, said
    assert said.startswith("jlibo: the connection to the Dask scheduler was lost")
    assert "run the same sweep again to resume" in said and said.count("\n") == 1


def test_workers_do_not_receive_ctrl_c(cluster):
    """Ctrl-C signals the whole process group; only the client's process should handle it."""
    pid = next(iter(cluster.run(os.getpid).values()))
    os.kill(pid, signal.SIGINT)
    assert cluster.submit(sum, [5, 6]).result(timeout=60) == 11
    assert set(cluster.run(os.getpid).values()) == {pid}
    with open(f"/proc/{pid}/status") as file:
        blocked = next(line for line in file if line.startswith("SigBlk"))
    assert int(blocked.split()[1], 16) & (1 << (signal.SIGINT - 1))


@pytest.mark.slow
def test_ctrl_c_on_a_local_cluster_prints_one_line(tmp_path):
    """Ctrl-C signals the whole process group: client, nannies and workers."""
    (tmp_path / "config.toml").write_text(CONFIG)
    out = tmp_path / "out"
    arguments = [
        "sweep",
        str(tmp_path / "config.toml"),
        "--out",
        str(out),
        "--dask",
        "local",
        "--workers",
        "2",
    ]
    # The suite may have been started with SIGINT ignored, which child processes inherit.
    script = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from jlibo import cli\n"
        f"if __name__ == '__main__': sys.exit(cli.main({arguments!r}))\n"
    )
    (tmp_path / "main.py").write_text(script)
    sweep = subprocess.Popen(
        [sys.executable, str(tmp_path / "main.py")],
        env=ENVIRONMENT | {"JLIBO_CACHE": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for(lambda: len(list(out.glob("chunks/*.chunk"))) >= 2, sweep)
        os.killpg(sweep.pid, signal.SIGINT)
        said = sweep.communicate(timeout=100)[1]
    finally:
        sweep.kill()
        sweep.communicate()
    assert sweep.returncode == 130, said
    assert said == f"jlibo: stopped. Finished chunks are in '{out}'; the same command resumes from there.\n"


def test_num_workers_has_a_bound():
    with (
        pytest.raises(ValueError, match="`num_workers` should be at most"),
        dask_cluster.local_client(10**9),
    ):
        pass
