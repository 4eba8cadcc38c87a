"""Batching rules for iterative solvers: finished batch elements cost no further work under `vmap`.

`jax.vmap` of `lax.while_loop` runs every batch element until the last one is done. One hard problem in a
batch of 256 makes the 255 finished ones repeat work. This module has three alternatives (a lane is a batch
element):

- `lane_while`: once at most one element in `SHRINK` is still running, the running elements are gathered into
  a smaller batch and continue there. This repeats with smaller and smaller batches. It is meant for
  accelerators, which need the batch.
- `lane_by_lane`: on a CPU, whose caches hold one problem but not 256, the elements run one after another,
  each for exactly the iterations it needs. On other platforms they run as a batch. A program that a process
  with CPUs alone lowers for another platform runs them one after another there, too.
- `lane_cond`: a rare branch is computed only in calls in which some element takes it.

All three first merge nested `vmap`s into one batch, so a sweep of seeds times hyper-parameters is one batch.
Every element runs exactly the iterations that it would run alone.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import eval_jaxpr
from jax.custom_batching import custom_vmap

State = TypeVar("State")

SHRINK = 8
"""Factor by which the batch shrinks when running elements are gathered. Each batch size is compiled once; 8
gives two or three sizes for typical batches."""


def lane_while(
    cond_fn: Callable[[State, Any], jax.Array],
    body_fn: Callable[[State, Any], State],
    state: State,
    data: Any,
) -> State:
    """Apply `body_fn(state, data)` while `cond_fn(state, data)` holds; return the final state.

    `data` is read-only. Both functions may close over Python values and NumPy constants, but not over traced
    arrays: pass those in `data`.
    """

    def loop(state, data):
        return lax.while_loop(lambda s: cond_fn(s, data), lambda s: body_fn(s, data), state)

    def batched_loop(num_lanes, axes, state, data):
        state_axes, data_axes = axes
        state = jax.tree.map(lambda leaf, axis: _with_lanes(leaf, axis, num_lanes), state, state_axes)
        return _compacting_loop(cond_fn, body_fn, num_lanes, data_axes, state, data)

    return _with_batch_rule(loop, batched_loop)(state, data)


def lane_cond(is_needed: jax.Array, fn: Callable[[State, Any], State], state: State, data: Any) -> State:
    """Return `fn(state, data)` where `is_needed`, else `state`; `data` is read-only.

    `jax.vmap` of `lax.cond` computes both branches at every call if the predicate is batched. Here `fn` is
    computed only if some batch element needs it, so a rare `fn` costs almost nothing. Not differentiable:
    apply `jax.lax.stop_gradient` to the inputs.
    """

    def choose(is_needed, state, data):
        return lax.cond(is_needed, fn, lambda state, data: state, state, data)

    def batched_choose(num_lanes, axes, is_needed, state, data):
        flag, state_flags, data_flags = axes
        is_needed = _with_lanes(is_needed, flag, num_lanes)
        state = jax.tree.map(lambda leaf, has: _with_lanes(leaf, has, num_lanes), state, state_flags)
        data_axes = jax.tree.map(lambda has: 0 if has else None, data_flags)

        def where_needed(state, data):
            new = jax.vmap(fn, in_axes=(0, data_axes), axis_size=num_lanes)(state, data)
            return jax.tree.map(lambda new, old: _where(is_needed, new, old), new, state)

        return lax.cond(is_needed.any(), where_needed, lambda state, data: state, state, data)

    return _with_batch_rule(choose, batched_choose)(is_needed, state, data)


def lane_by_lane(fn: Callable) -> Callable:
    """Return `fn` with a `vmap` rule: sequential over batch elements on a CPU, batched on other platforms.

    `fn` takes and returns pytrees of arrays and must not close over traced arrays.
    """

    def one_by_one(axes, *args):
        leaves, structure = jax.tree.flatten(args)
        flags = jax.tree.leaves(axes)

        def one_lane(lane_leaves):
            lane = iter(lane_leaves)
            mixed = [next(lane) if flag else leaf for leaf, flag in zip(leaves, flags, strict=True)]
            return fn(*jax.tree.unflatten(structure, mixed))

        return lax.map(one_lane, [leaf for leaf, flag in zip(leaves, flags, strict=True) if flag])

    def batched_fn(num_lanes, axes, *args):
        def as_batch(*args):
            in_axes = jax.tree.map(lambda flag: 0 if flag else None, axes)
            return jax.vmap(fn, in_axes=in_axes, axis_size=num_lanes)(*args)

        if jax.default_backend() == "cpu":
            # Tracing the batch, too, would take half as long again as all the rest of an experiment.
            return one_by_one(axes, *args)
        return lax.platform_dependent(*args, cpu=lambda *args: one_by_one(axes, *args), default=as_batch)

    return _with_batch_rule(fn, batched_fn)


def _with_batch_rule(fn, batched_fn):
    """Return `fn` such that nested `vmap`s of it become one call of `batched_fn(num_lanes, flags, *args)`.

    `flags` has the structure of `args`: true for the leaves that have the leading batch axis.
    """

    def under_vmap(num_lanes, flags, *args):
        out = _mergeable(batched_fn, num_lanes, flags)(*args)
        return out, jax.tree.map(lambda _: True, out)

    return _custom_vmap(fn, under_vmap)


def _mergeable(batched_fn, num_lanes, flags):
    """Return `batched_fn` with a `vmap` rule that merges the outer batch axis into the inner one."""

    def under_another_vmap(num_outer, outer_flags, *args):
        def merge(leaf, outer, inner):
            if not outer and not inner:
                return leaf
            leaf = leaf if outer else _with_lanes(leaf, False, num_outer)
            if not inner:
                leaf = jnp.broadcast_to(leaf[:, None], (num_outer, num_lanes, *leaf.shape[1:]))
            return leaf.reshape(num_outer * num_lanes, *leaf.shape[2:])

        merged = jax.tree.map(merge, args, outer_flags, flags)
        merged_flags = jax.tree.map(lambda a, b: a or b, outer_flags, flags)
        out = _mergeable(batched_fn, num_outer * num_lanes, merged_flags)(*merged)
        out = jax.tree.map(lambda leaf: leaf.reshape(num_outer, num_lanes, *leaf.shape[1:]), out)
        return out, jax.tree.map(lambda _: True, out)

    return _custom_vmap(lambda *args: batched_fn(num_lanes, flags, *args), under_another_vmap)


def _custom_vmap(fn, rule):
    """Return `custom_vmap` of `fn` with its constant arrays passed as arguments.

    In a `cond` with a batched predicate, JAX batches everything, constants included, and `custom_vmap`
    rejects batched constants. The rule traces `fn` again with its own constants, so it ignores these.
    """

    def call(*args):
        closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
        structure = jax.tree.structure(shapes)

        @custom_vmap
        def run(consts, args):
            out = eval_jaxpr(closed.jaxpr, consts, *jax.tree.leaves(args))
            return jax.tree.unflatten(structure, out)

        @run.def_vmap
        def under_vmap(num_lanes, flags, consts, args):
            return rule(num_lanes, tuple(flags[1]), *args)

        return run(closed.consts, args)

    return call


def _compacting_loop(cond_fn, body_fn, num_lanes, data_flags, state, data):
    """Run the batched loop; continue with the running elements alone once `num_lanes // SHRINK` are left."""
    axes = jax.tree.map(lambda flag: 0 if flag else None, data_flags)
    is_running = jax.vmap(cond_fn, in_axes=(0, axes))
    advance = jax.vmap(body_fn, in_axes=(0, axes))
    num_kept = num_lanes // SHRINK

    def enough_running(carry):
        return jnp.sum(carry[1]) > num_kept

    def advance_running(carry):
        state, running = carry
        state = jax.tree.map(lambda new, old: _where(running, new, old), advance(state, data), state)
        return state, is_running(state, data)

    state, running = lax.while_loop(enough_running, advance_running, (state, is_running(state, data)))
    if num_kept == 0:
        return state

    def finish_the_rest(state):
        kept = jnp.argsort(~running)[:num_kept]
        few = jax.tree.map(lambda leaf: leaf[kept], state)
        few_data = jax.tree.map(lambda leaf, flag: leaf[kept] if flag else leaf, data, data_flags)
        few = _compacting_loop(cond_fn, body_fn, num_kept, data_flags, few, few_data)
        return jax.tree.map(lambda leaf, part: leaf.at[kept].set(part), state, few)

    return lax.cond(jnp.any(running), finish_the_rest, lambda state: state, state)


def _where(running, new, old):
    return jnp.where(running.reshape(running.shape + (1,) * (new.ndim - 1)), new, old)


def _with_lanes(leaf, has_lanes: bool, num_lanes: int):
    return leaf if has_lanes else jnp.broadcast_to(leaf, (num_lanes, *jnp.shape(leaf)))
