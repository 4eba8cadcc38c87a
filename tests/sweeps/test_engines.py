"""Results do not depend on the engine: devices, processes on the loopback interface, Dask workers."""

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from jlibo import Labelled
from tests import forked
from tests.sweeps import sweep_jobs
from tests.sweeps.test_folder import JOBS, contents

ENVIRONMENT = os.environ | {"NPROC": "12", "JAX_PLATFORMS": "cpu"}


def run(*jobs, **variables):
    """Run jobs at the same time, each in a process of its own."""

    def one(arguments):
        command = [str(JOBS), *map(str, arguments)]
        return forked.run(command, env=ENVIRONMENT | variables, capture_output=True, text=True)

    with ThreadPoolExecutor() as pool:
        for done in pool.map(one, jobs):
            assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Results of each job in one process with one device."""
    path = tmp_path_factory.mktemp("alone")
    run(["alone", path])
    return path


@pytest.mark.parametrize("job", ["quick", pytest.param("lifelong", marks=pytest.mark.slow)])
def test_one_two_and_eight_devices_give_the_same_results(tmp_path, job):
    """Floats may differ in the last bit; actions and supports are equal.

    For one device, XLA simplifies `0.1 * (1.4 * x)` in another order than for several.
    """
    flags = (
        f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"  # compiled as quickly as here
    )
    run(["devices", tmp_path, job], XLA_FLAGS=flags)
    if job == "quick":
        assert (tmp_path / "2.npz").read_bytes() == (tmp_path / "8.npz").read_bytes()
    first, *others = (Labelled.load(tmp_path / f"{count}.npz") for count in (1, 2, 8))
    for other in others:
        assert first.attrs == other.attrs and first.names == other.names
        for name in first.names:
            if first[name].dtype.kind == "f":
                np.testing.assert_allclose(first[name], other[name], rtol=1e-5, atol=1e-5)
            else:
                np.testing.assert_array_equal(first[name], other[name])


def test_two_processes_give_the_same_bytes_as_one(alone, tmp_path):
    """With a shared folder and without one, every process has the whole result."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    run(*(["processes", tmp_path, index, 2, port] for index in range(2)))
    assert contents(tmp_path / "shared") == contents(alone / "shared")
    for kind in ("with", "without"):
        for index in range(2):
            saved = (tmp_path / f"{kind}-2-{index}.npz").read_bytes()
            assert saved == (alone / f"{kind}-1-0.npz").read_bytes()


def test_dask_gives_the_same_bytes_after_a_worker_is_killed(alone, tmp_path):
    pytest.importorskip("distributed")
    run(["dask", tmp_path / "dask", "kill"])
    assert contents(tmp_path / "dask") == contents(alone / "folder")


@pytest.fixture
def order():
    """The order that a client would send for the quick sweep, and the result of that sweep."""
    pytest.importorskip("distributed")
    import jax

    from jlibo.sweeps import points, program
    from jlibo.sweeps.dask_engine import Order

    key, dims = jax.random.key(3), {"curve": ("step",)}
    plan = points.Plan(points.as_points(sweep_jobs.GRID), sweep_jobs.NUM_SEEDS, 0, 9)
    digest = program.trace(sweep_jobs.quick, plan.points, key, dims=dims).digest
    data = np.asarray(jax.random.key_data(key))
    return Order(
        sweep_jobs.quick, plan, dims, data, "threefry2x32", True, digest, program.versions()
    ), sweep_jobs.run_quick(chunk=9)


def test_worker_traces_once_and_equals_a_local_sweep(order, monkeypatch):
    import cloudpickle

    from jlibo.sweeps import dask_engine

    order, expected = order
    traced = []
    trace = dask_engine.trace
    monkeypatch.setattr(dask_engine, "trace", lambda *args, **more: traced.append(1) or trace(*args, **more))
    sent = cloudpickle.dumps(order)
    # Chunks in any order; the last one is not full.
    parts = {number: dask_engine.compute_chunk(sent, number) for number in (7, 0, 3, 1, 2, 6, 5, 4)}
    assert len(traced) == 1
    assert len(parts[7][0]) == 66 - 7 * 9
    for place, name in enumerate(("best", "curve")):
        lanes = np.concatenate([parts[number][place] for number in range(8)])
        np.testing.assert_array_equal(order.plan.unfold(lanes), expected[name])


def test_worker_with_other_versions_or_another_program_is_refused(order):
    import dataclasses

    import cloudpickle

    from jlibo.sweeps.dask_engine import WorkerError, compute_chunk

    old = dataclasses.replace(order[0], versions={**order[0].versions, "jax": "0.1.0"})
    with pytest.raises(WorkerError, match=r"a worker has .* but should have .*jax 0\.1\.0"):
        compute_chunk(cloudpickle.dumps(old), 0)
    other = dataclasses.replace(order[0], digest="0" * 64)
    with pytest.raises(WorkerError, match="computes something else than here"):
        compute_chunk(cloudpickle.dumps(other), 0)


CONFIG = """
experiment = "lifelong-cosine"
seeds = 5
chunk = 2
[set]
num_features = 8
support_size = 2
num_tasks = 3
horizon = 20
[grid]
lam = [0.1, 0.5]
omega = [0.1, 0.3]
"""


@pytest.mark.slow
def test_command_writes_the_same_bytes_on_every_engine(tmp_path):
    pytest.importorskip("distributed")
    (tmp_path / "config.toml").write_text(CONFIG)
    variants = {
        "one": [],
        "two": ["--devices", "2"],
        "eight": ["--devices", "8"],
        "dask": ["--dask", "local", "--workers", "2"],
    }
    for name, options in variants.items():
        command = [sys.executable, "-m", "jlibo.cli", "sweep", str(tmp_path / "config.toml"), *options]
        environment = {key: value for key, value in ENVIRONMENT.items() if key != "NPROC"}
        environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
        environment["JLIBO_CACHE"] = "1"
        subprocess.run([*command, "--out", str(tmp_path / name)], env=environment, check=True, timeout=900)
    for name in variants:
        assert contents(tmp_path / name) == contents(tmp_path / "one"), name
