"""`sweep`: one trace, named axes, chunks, memory budgets and progress, compared with single runs."""

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo import host_memory
from jlibo.sweeps import budget as memory
from jlibo.sweeps import points, progress, task_ticks
from jlibo.sweeps.program import trace
from tests.sweeps.sweep_jobs import GRID, NUM_SEEDS, lifelong, quick, run_quick

equal = np.testing.assert_array_equal
close = np.testing.assert_allclose
KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def swept():
    return run_quick()


def test_every_run_equals_the_function_at_its_point_and_seed(swept):
    assert swept.dims("curve") == ("lam", "omega", "seed", "step")
    assert swept["curve"].shape == (3, 2, NUM_SEEDS, 5) and swept["best"].shape == (3, 2, NUM_SEEDS)
    one_by_one = jax.jit(quick)
    for i, lam in enumerate(GRID["lam"]):
        for j, omega in enumerate(GRID["omega"]):
            for seed in (0, 5, NUM_SEEDS - 1):
                alone = one_by_one(jax.random.fold_in(KEY, seed), lam, omega)
                close(swept["curve"][i, j, seed], alone["curve"], rtol=1e-12, atol=1e-12)
                equal(swept["best"][i, j, seed], alone["best"])
    equal(swept.sel(lam=0.5, omega=1.0, seed=4)["curve"], swept["curve"][1, 1, 4])


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_results_do_not_depend_on_the_chunk(swept, chunk):
    """With a last chunk that is full, partly filled, or the only one and larger than the sweep."""
    other = run_quick(chunk=chunk)
    close(other["curve"], swept["curve"], rtol=1e-12, atol=1e-12)
    equal(other["best"], swept["best"])


def test_function_is_traced_once(count_traces):
    counted, counter = count_traces(quick)
    jlibo.sweep(counted, GRID, num_seeds=NUM_SEEDS, chunk=4, key=KEY)
    assert counter.count == 1
    # Also if the chunk is chosen automatically, and if the first choice does not fit.
    budget = jlibo.sweep(counted, GRID, num_seeds=NUM_SEEDS, key=KEY)
    assert counter.count == 2
    smaller = jlibo.sweep(counted, GRID, num_seeds=NUM_SEEDS, memory_budget=30_000, key=KEY)
    assert counter.count == 3
    assert smaller.attrs["chunk"] < budget.attrs["chunk"] == 9
    equal(smaller["best"], budget["best"])


def test_list_of_points_first_seed_and_no_grid(swept):
    listed = jlibo.sweep(
        quick, [{"lam": 0.7, "omega": 0.0}, {"lam": 0.1, "omega": 1.0}], num_seeds=3, first_seed=4, key=KEY
    )
    assert listed.dims("curve") == ("point", "seed", "curve_0")
    equal(listed.coord("seed"), [4, 5, 6])
    close(listed["curve"][0], swept["curve"][2, 0, 4:7], rtol=1e-12, atol=1e-12)
    close(listed["curve"][1], swept["curve"][0, 1, 4:7], rtol=1e-12, atol=1e-12)
    close(listed.sel(lam=0.1)["curve"], listed["curve"][1:])
    alone = jlibo.sweep(lambda key: jax.random.uniform(key), num_seeds=4, key=KEY)
    assert alone.dims("value") == ("seed",)
    assert len(set(alone["value"].tolist())) == 4


def test_dtypes_of_grid_values():
    def run(whole, real, flag, *, key):
        assert (whole.dtype, real.dtype, flag.dtype) == (jnp.int64, jnp.float64, jnp.bool_)
        return jnp.where(flag, whole * real, -1.0)

    result = jlibo.sweep(run, {"whole": [1, 2], "real": [0.5], "flag": [True, False]}, key=KEY)
    equal(result["value"][..., 0], [[[0.5, -1.0]], [[1.0, -1.0]]])
    with jax.enable_x64(False):
        single = jlibo.sweep(lambda key, real: real, {"real": [0.1]}, key=KEY)
    assert single["value"].dtype == np.float32 and single.coord("real").dtype == np.float64


def test_axes_of_a_lifelong_result_are_named():
    result = jlibo.sweep(lifelong, {"lam": [0.1, 0.6], "omega": [0.0]}, num_seeds=2, key=KEY)
    assert result.dims("regret") == result.dims("actions") == ("lam", "omega", "seed", "task", "step")
    assert result.dims("support") == ("lam", "omega", "seed", "task", "group")
    assert result.dims("gap") == ("lam", "omega", "seed", "task")
    fields = {name for name in inspect.get_annotations(jlibo.LifelongResult) if name != "carry"}
    assert set(result.names) == fields
    alone = lifelong(jax.random.fold_in(KEY, 1), jnp.asarray(0.6), jnp.asarray(0.0))
    for name in fields:
        close(result.sel(lam=0.6, omega=0.0, seed=1)[name], getattr(alone, name), rtol=1e-6, atol=1e-9)


def test_pytrees_keys_and_bfloat16_become_named_arrays():
    class Pair(eqx.Module):
        left: jax.Array
        right: list

    def run(key):
        pair = Pair(jnp.arange(3), [jnp.ones((), jnp.bfloat16) / 3, key])
        return {"pair": pair, "plain": jnp.zeros(2)}

    result = jlibo.sweep(run, num_seeds=2, dims={"left": ("place",), "plain": ("half",)}, key=KEY)
    assert result.names == ("pair.left", "pair.right.0", "pair.right.1", "plain")
    assert result.dims("pair.left") == ("seed", "place") and result.dims("plain") == ("seed", "half")
    assert result["pair.right.0"].dtype == np.float32
    equal(result["pair.right.1"][1], jax.random.key_data(jax.random.fold_in(KEY, 1)))


def test_old_style_keys_are_accepted():
    new = jlibo.sweep(lambda key: jax.random.uniform(key), key=jax.random.key(5))
    old = jlibo.sweep(lambda key: jax.random.uniform(key), key=jax.random.PRNGKey(5))
    equal(new["value"], old["value"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": {"lam": 0.1}}, "`grid` should be a list of numbers for lam, but got 0.1"),
        ({"grid": {"lam": []}}, "a list of numbers for lam"),
        ({"grid": {"lam": ["a"]}}, "numbers for lam"),
        ({"grid": {"lam": [0.1, np.nan]}}, "`lam` should be finite"),
        ({"grid": {"seed": [1]}}, "names of arguments other than seed"),
        ({"grid": {"lamb": [1], "omega": [1]}}, "one without an argument lamb"),
        ({"grid": [{"lam": 1, "omega": 1}, {"lam": 1}]}, "points that all have"),
        ({"grid": [{"lam": [1], "omega": 1}]}, "one number for lam in point 0"),
        ({"grid": []}, "a mapping of names to values"),
        ({"num_seeds": 0}, "`num_seeds` should be a whole number >= 1"),
        ({"num_seeds": 2.0}, "`num_seeds` should be a whole number"),
        ({"first_seed": -1}, "`first_seed` should be a whole number >= 0"),
        ({"chunk": 0}, "`chunk` should be a whole number >= 1"),
        ({"devices": 99}, "between 1 and the 1 local devices"),
        ({"memory_budget": 10}, "`memory_budget` should be at least the"),
        ({"dims": {"curve": ("a", "b")}}, "`dims` should be 1 names for the axes of curve"),
        ({"dims": {"curv": ("a",)}}, r"among \['best', 'curve'\]"),
        ({"dims": {"curve": ("seed",)}}, "names other than the sweep's own"),
        ({"coords": {"step": [1, 2]}}, "'step' is 5 long"),
        ({"coords": {"agent": [1, 2]}}, "along axes among step"),
    ],
)
def test_bad_arguments_raise(options, message):
    options = {"num_seeds": 1, "dims": {"curve": ("step",)}, "key": KEY} | options
    with pytest.raises(ValueError, match=message):
        jlibo.sweep(quick, options.pop("grid", GRID), **options)


# --- progress ---


def test_progress_within_chunks_leaves_results_unchanged(swept):
    told = []
    watched = run_quick(chunk=33, progress=lambda share, words: told.append((share, words)))
    shares = [share for share, _ in told]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] == 1
    # Two chunks of five ticks each, however many runs are in a chunk.
    assert set(np.round(shares, 9)) == {round(step / 10, 9) for step in range(11)}
    assert {words for _, words in told} == {"tracing", "compiling", "running"}
    silent = run_quick(chunk=33)
    for name in watched.names:
        # XLA may fuse a program with callbacks differently, so the last bits of a float can differ.
        is_float = watched[name].dtype.kind == "f"
        np.testing.assert_allclose(watched[name], silent[name], rtol=1e-11 if is_float else 0, atol=1e-12)


def operations(program):
    return str(jax.make_jaxpr(program.chunk_fn(2))(*program.arguments(2)))


def test_no_callbacks_without_progress():
    plan = points.as_points(GRID)
    assert "callback" not in operations(trace(quick, plan, KEY))
    meter = progress.Meter(lambda share, words: None)
    assert "callback" in operations(trace(quick, plan, KEY, meter=meter))


def test_tick_with_a_batched_step_is_reported_once():
    told = []

    def run(key, lam):
        def step(total, index):
            progress.tick((index + 1) * jnp.where(lam > 0, 1, 2), 4)
            return total + lam, None

        return jax.lax.scan(step, 0.0, jnp.arange(4))[0]

    jlibo.sweep(
        run, {"lam": [1.0, 2.0]}, num_seeds=5, chunk=10, progress=lambda share, _: told.append(share), key=KEY
    )
    assert sorted({*told}) == [0, 0.25, 0.5, 0.75, 1]


def test_lifelong_runs_tick_once_per_task():
    assert task_ticks(3) is None
    told = []
    meter = progress.Meter(lambda share, _: told.append(share))
    meter.begin(1)
    with progress.traced_with(meter):
        tell = task_ticks(4)
    tell(1), tell(2)
    assert told == [0.25, 0.5]


def test_progress_bar_works_without_a_terminal(capsys):
    run_quick(num_seeds=2, progress=True)
    assert "Traceback" not in capsys.readouterr().err


# --- memory ---


class FakeProgram:
    """A program that needs 100 bytes plus 10 for each run."""

    tried: list

    def __init__(self, chunk, tried):
        self.chunk = chunk
        tried.append(chunk)

    def bytes_per_device(self):
        return 100 + 10 * self.chunk


def test_fitting_chunk_stays_within_the_budget():
    for budget, wanted in [(10_000, 32), (300, 32), (150, 1000), (110, 7)]:
        tried = []
        found = memory.fitting(lambda chunk, tried=tried: FakeProgram(chunk, tried), wanted, budget)
        assert found.bytes_per_device() <= budget and found.chunk >= 1
        if budget == 10_000:
            assert tried == [32]
    with pytest.raises(ValueError, match="at least the 110 bytes that one run needs"):
        memory.fitting(lambda chunk: FakeProgram(chunk, []), 8, 109)


def test_wanted_chunk_is_the_same_on_up_to_eight_devices():
    device = jax.local_devices()[0]
    for lanes in (1, 2, 5, 66, 1000, 10_000):
        wanted = {memory.wanted_chunk(lanes, [device] * count) for count in (1, 2, 4, 8)}
        assert len(wanted) == 1 and 1 <= wanted.pop() <= min(lanes, memory.CPU_CHUNK)


def test_memory_limit_of_a_container_is_read(tmp_path):
    assert 0 < memory.free_of(jax.local_devices()) < 2**50
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert host_memory._group_memory(tmp_path) == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert host_memory._group_memory(tmp_path) is None
