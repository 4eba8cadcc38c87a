"""Sweeps that tests run in separate processes: `python sweep_jobs.py JOB ...`. Not a test by itself."""

import errno
import os
import sys
import time
import warnings
from pathlib import Path

os.environ.setdefault("NPROC", "12")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo.sweeps import SweepWarning, engines, tick

GRID = {"lam": [0.1, 0.5, 0.7], "omega": [0.0, 1.0]}
NUM_SEEDS = 11
CHUNK = 9


def quick(key, lam, omega):
    """Compiles quickly; has products, sums and a scan, which another batch size may round differently."""
    matrix = jax.random.normal(key, (20, 20))

    def step(state, index):
        tick(index + 1, 5)
        state = jnp.tanh(lam * matrix @ state + omega)
        return state, state.sum()

    state, curve = jax.lax.scan(step, jnp.ones(20), jnp.arange(5))
    return {"curve": curve, "best": jnp.argmax(state)}


def lifelong(key, lam, omega):
    """A small lifelong run with solver, posterior and policy."""
    features = jlibo.Cosine(6)
    env_key, run_key = jax.random.split(key)
    env = jlibo.SyntheticEnv.draw(
        features, support_size=2, candidates=np.linspace(0, 1, 40)[:, None], key=env_key
    )
    learner = jlibo.MetaKGL(lam, 0.1 + omega)
    policy = jlibo.GPUCB(2.0, 0.1)
    return jlibo.run_lifelong(env, features, policy, learner, num_tasks=3, horizon=9, key=run_key)


def run_quick(**options):
    options = {"num_seeds": NUM_SEEDS, "dims": {"curve": ("step",)}, "key": jax.random.key(3)} | options
    return jlibo.sweep(quick, GRID, **options)


def on_devices(folder: Path, job: str) -> None:
    """The same sweep on 1, 2 and 8 of 8 devices; then the warning and the error for too few threads."""
    assert len(jax.local_devices()) == 8
    for count in (1, 2, 8):
        if job == "quick":
            result = run_quick(devices=count)
            assert result.attrs["chunk"] == 9
        else:
            # 21 runs in chunks of two: on eight devices, the last chunk and the last round are padded.
            points = [{"lam": 0.1, "omega": 0.0}, {"lam": 0.4, "omega": 0.2}, {"lam": 0.3, "omega": 0.5}]
            key = jax.random.key(1)
            result = jlibo.sweep(lifelong, points, num_seeds=7, chunk=2, devices=count, key=key)
        result.save(folder / f"{count}.npz")
    os.environ["NPROC"] = "4"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(engines.choose_devices(None)) == 3
    assert [one.category for one in caught] == [SweepWarning] and "NPROC=10" in str(caught[0].message)
    with pytest.raises(ValueError, match="NPROC=10"):
        engines.choose_devices(8)


def in_processes(folder: Path, index: str, count: str, port: str) -> None:
    """Process `index` of `count`; one process runs the same script."""
    if int(count) > 1:
        address = f"127.0.0.1:{port}"
        jax.distributed.initialize(
            address, int(count), int(index), coordinator_bind_address=address, heartbeat_timeout_seconds=30
        )
    with_folder = run_quick(out=folder / "shared")
    without = run_quick(chunk=4)
    with_folder.save(folder / f"with-{count}-{index}.npz")
    without.save(folder / f"without-{count}-{index}.npz")
    # An error that only the first process detects is raised in all of them, so that none hangs.
    with pytest.raises(jlibo.sweeps.SweepFolderError, match="num_seeds was 11 and is 3 now"):
        run_quick(out=folder / "shared", num_seeds=3)


def in_folder(folder: Path, pause: str = "0") -> None:
    """A sweep of many chunks, with a pause after each so that it can be killed in between."""
    run_quick(out=folder, chunk=1, progress=lambda share, words: time.sleep(float(pause)))


def in_folder_killed(folder: Path, moment: str) -> None:
    """A sweep whose process gets SIGKILL at call number `moment` of those that change the disk."""
    import signal

    calls = 0

    def counted(name):
        call = getattr(os, name)

        def wrapped(*args, **options):
            nonlocal calls
            calls += 1
            if calls == int(moment):
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        setattr(os, name, wrapped)

    for name in ("open", "fsync", "replace", "unlink", "mkdir"):
        counted(name)
    run_quick(out=folder, chunk=CHUNK)


def on_full_disk(folder: Path, num_chunks: str, num_bytes: str) -> None:
    """After `num_chunks` chunks, no file can exceed `num_bytes` bytes: the sweep raises one error."""
    import resource

    done = []

    def progress(share, words):
        done.append(share)
        if sum(share > 0 for share in done) == int(num_chunks) or num_chunks == "0":
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(num_bytes), resource.RLIM_INFINITY))

    with pytest.raises(jlibo.sweeps.SweepStorageError, match="resume") as caught:
        run_quick(out=folder, chunk=CHUNK, progress=progress)
    assert isinstance(caught.value, OSError) and caught.value.errno == errno.EFBIG
    assert "\n" not in str(caught.value)


def on_dask(folder: Path, kill: str = "") -> None:
    """On two Dask workers; if `kill` is given, one is killed after the first chunk is received."""
    import signal

    from jlibo.sweeps.dask_cluster import local_client

    with local_client(2) as client:
        found = client.run(os.getpid)
        assert all("127.0.0.1" in address for address in found)
        environment = client.run(lambda: (os.environ["NPROC"], "jax" in sys.modules))
        assert {nproc for nproc, _ in environment.values()} == {os.environ["NPROC"]}
        victims = list(found.values())[:1] if kill else []

        def progress(share, words):
            if share > 0 and victims:
                os.kill(victims.pop(), signal.SIGKILL)

        run_quick(out=folder, chunk=1, client=client, progress=progress)
        assert not victims
        if kill:
            assert set(client.run(os.getpid).values()) != set(found.values())


def on_lost_dask(folder: Path, address: str, scheduler: str) -> None:
    """On an external Dask cluster whose scheduler is killed after three chunks are received."""
    import signal

    from jlibo.sweeps.dask_cluster import connect
    from jlibo.sweeps.dask_engine import ClusterError

    def progress(share, words):
        if share * 66 >= 3 and words == "running" and scheduler not in killed:
            killed.append(scheduler)
            os.kill(int(scheduler), signal.SIGKILL)

    killed = []
    with connect(address) as client, pytest.raises(ClusterError, match=r"scheduler was lost .* to resume"):
        run_quick(out=folder, chunk=1, client=client, progress=progress)
    assert killed


def alone(folder: Path) -> None:
    """What several processes and Dask workers do, in one process."""
    in_folder(folder / "folder")
    in_processes(folder, "0", "1", "0")


JOBS = {
    "alone": alone,
    "lost": on_lost_dask,
    "devices": on_devices,
    "processes": in_processes,
    "folder": in_folder,
    "killed": in_folder_killed,
    "full": on_full_disk,
    "dask": on_dask,
}

if __name__ == "__main__":
    JOBS[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
