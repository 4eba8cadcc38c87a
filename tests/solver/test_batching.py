"""Loops and conditionals under `vmap`: equal to unbatched ones, with a bounded number of evaluations."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jlibo.solver.batching import lane_by_lane, lane_cond, lane_while


class Calls:
    """Count the lanes a body has been applied to: a debug callback runs once for each lane of a batch."""

    def __init__(self):
        self.count = 0

    def __call__(self, _):
        self.count += 1


def count_up(value, limit, calls=None):
    """Count up to `limit` by ones, in `limit` steps, accumulating a sum."""

    def cond_fn(state, data):
        return state[0] < data["limit"]

    def body_fn(state, data):
        if calls is not None:
            jax.debug.callback(calls, state[0])
        count, total = state
        return count + 1, total + data["value"] * count

    state = (jnp.zeros((), jnp.int32), jnp.zeros((2,)))
    return lane_while(cond_fn, body_fn, state, dict(limit=limit, value=value))


VALUE = np.array([1.0, -2.0])
LIMITS = np.array([0, 1, 3, 200, 2, 2, 0, 5, 1, 1, 40, 2, 2, 3, 1, 0, 7, 1000], np.int32)


def assert_lanes(out, value, limits):
    count, total = out
    np.testing.assert_array_equal(count, limits)
    np.testing.assert_array_equal(total, value * (limits * (limits - 1) / 2)[..., None])


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("wrap", [lambda fn: fn, lane_by_lane], ids=["lane_while", "lane_by_lane"])
def test_vmap_equals_a_loop(wrap, jit):
    run = wrap(count_up)
    maybe_jit = jax.jit if jit else lambda fn: fn
    limits = LIMITS.reshape(3, 6)
    assert_lanes(run(VALUE, np.int32(7)), VALUE, np.int32(7))
    assert_lanes(maybe_jit(jax.vmap(run, (None, 0)))(VALUE, LIMITS), VALUE, LIMITS)
    assert_lanes(maybe_jit(jax.vmap(jax.vmap(run, (None, 0)), (None, 0)))(VALUE, limits), VALUE, limits)
    # Batch axes of two arguments, nested in either order; then lanes with equal limits.
    values, few = np.arange(6.0).reshape(3, 2), LIMITS[:4]
    table = np.broadcast_to(few, (3, 4))
    outer_value = maybe_jit(jax.vmap(jax.vmap(run, (None, 0)), (0, None)))(values, few)
    assert_lanes(outer_value, values[:, None], table)
    outer_limit = maybe_jit(jax.vmap(jax.vmap(run, (0, None)), (None, 0)))(values, few)
    assert_lanes(outer_limit, values, np.broadcast_to(few[:, None], (4, 3)))
    assert_lanes(maybe_jit(jax.vmap(run, (0, None)))(values, np.int32(5)), values, np.full(3, 5))


def test_other_axes_and_scan():
    values = np.arange(8.0).reshape(2, 4)
    _, (counts, totals) = jax.lax.scan(
        lambda carry, limits: (carry, jax.vmap(count_up, (1, 0))(values, limits)),
        0,
        LIMITS[:16].reshape(4, 4),
    )
    for row, limits in enumerate(LIMITS[:16].reshape(4, 4)):
        assert_lanes((counts[row], totals[row]), values.T, limits)


def applications(fn, *args):
    calls = Calls()
    jax.block_until_ready(jax.vmap(partial(fn, calls), (None, 0))(*args))
    jax.effects_barrier()
    return calls.count


def test_compaction_evaluates_only_unfinished_lanes():
    limits = np.full(64, 10, np.int32)
    limits[37] = 1_000
    count = applications(lambda calls, value, limit: count_up(value, limit, calls), VALUE, limits)
    # All 64 together ten times, then one lane alone; never 64 x 1,000.
    assert 64 * 10 + 990 <= count <= 64 * 10 + 990 + 8


def test_compaction_in_stages():
    limits = np.repeat(np.array([1, 100, 1_000], np.int32), [55, 8, 1])
    count = applications(lambda calls, value, limit: count_up(value, limit, calls), VALUE, limits[::-1])
    # Compaction needs at most 8 running lanes. Nine run, so all 64 continue to 100; then one lane alone.
    assert 64 * 100 + 900 <= count <= 64 * 100 + 900 + 8
    limits[55] = 1
    count = applications(lambda calls, value, limit: count_up(value, limit, calls), VALUE, limits[::-1])
    assert 64 + 8 * 99 + 900 <= count <= 64 + 8 * 99 + 900 + 8


def test_lane_by_lane_takes_each_lanes_own_number_of_steps():
    def run(calls, value, limit):
        return lane_by_lane(partial(count_up, calls=calls))(value, limit)

    assert applications(run, VALUE, LIMITS) == LIMITS.sum()


@pytest.mark.parametrize("wrap", [lambda fn: fn, lane_by_lane], ids=["lane_while", "lane_by_lane"])
def test_constant_arrays_inside_batched_cond(wrap):
    """jax batches constants there too; the nested case covers merged batch axes."""
    table = np.array([1.0, 2.0, 4.0])

    def run(limit):
        return lane_while(
            lambda state, limit: state[0] < limit,
            lambda state, limit: (state[0] + 1, state[1] + table),
            (jnp.zeros((), jnp.int32), jnp.zeros(3)),
            limit,
        )[1]

    def maybe(flag, limit):
        return jax.lax.cond(flag, wrap(run), lambda limit: -jnp.ones(3), limit)

    flags, limits = np.array([True, False, True]), LIMITS[:4]
    out = jax.vmap(jax.vmap(maybe, (None, 0)), (0, None))(flags, limits)
    expected = np.where(flags[:, None, None], limits[:, None] * table, -1)
    np.testing.assert_array_equal(out, expected)
    inner = jax.vmap(
        lambda flag: jax.lax.cond(flag, jax.vmap(wrap(run)), lambda _: -jnp.ones((4, 3)), limits)
    )
    np.testing.assert_array_equal(inner(flags), expected)


NEEDED = {"none": [False] * 4, "one": [False, True, False, False], "all": [True] * 4}


@pytest.mark.parametrize("needed", NEEDED.values(), ids=NEEDED.keys())
@pytest.mark.parametrize("shared", [False, True], ids=["own data", "shared data"])
def test_lane_cond_selects_per_lane_and_is_skipped_if_no_lane_needs_it(needed, shared):
    state, data = np.arange(8.0).reshape(4, 2), np.array([[3.0], [4.0], [5.0], [6.0]])
    data, axis = (data[0], None) if shared else (data, 0)

    def run(calls, is_needed, state, data):
        def fn(state, data):
            jax.debug.callback(calls, state[0])
            return state * data

        return lane_cond(is_needed, fn, state, data)

    calls = Calls()
    nested = jax.vmap(jax.vmap(partial(run, calls), (0, 0, axis)), (None, 0, None))
    out = jax.jit(nested)(np.array(needed), np.stack([state, -state]), data)
    jax.effects_barrier()
    expected = np.where(np.array(needed)[:, None], state * data, state)
    np.testing.assert_array_equal(out, np.stack([expected, -expected]))
    assert calls.count == (8 if any(needed) else 0)
    for lane in range(4):
        one = lane_cond(needed[lane], lambda s, d: s * d, state[lane], data if shared else data[lane])
        np.testing.assert_array_equal(one, expected[lane])
