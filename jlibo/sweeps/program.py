"""The program of a sweep: the user's function, traced for one lane and compiled for one chunk per device.

A run may consist of several segments (`AbstractSegmentedRun`). The program then computes one segment of a
chunk, and the segments of a chunk are computed one after the other.
"""

import dataclasses
import hashlib
import importlib.metadata
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import eval_jaxpr

from jlibo.checks import fail
from jlibo.lifelong.play import LifelongResult
from jlibo.programs.collector import collector_paused
from jlibo.programs.traced import stored
from jlibo.sweeps.points import Points, check_fits_dtype
from jlibo.sweeps.progress import Meter, traced_with
from jlibo.sweeps.segments import AbstractSegmentedRun, as_segmented
from jlibo.version import __version__

_RESULT_DIMS = {
    **dict.fromkeys(("actions", "rewards", "regret", "explored"), ("task", "step")),
    **dict.fromkeys(("num_explore", "fell_back", "status", "gap", "num_steps"), ("task",)),
    "support": ("task", "group"),
}
"""The axes of a `LifelongResult`."""


@final
@dataclasses.dataclass(frozen=True)
class Output:
    """One array that a lane returns."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def num_bytes(self) -> int:
        """Size for one lane."""
        return math.prod(self.shape) * self.dtype.itemsize


@final
@dataclasses.dataclass(frozen=True)
class Program:
    """The traced function. It can be compiled and run without the user's Python code."""

    chunk_fn: Callable[[int], Callable[..., Any]]
    """Returns the function of a chunk with the given number of lanes, see `_chunk_fn`."""
    outputs: tuple[Output, ...]
    """The outputs of a whole run."""
    param_dtypes: dict[str, np.dtype]
    key_impl: str
    digest: str
    """SHA-256 of the operations and their constants. Different programs have different digests."""
    loop_bytes: int
    """Size of the results of the largest loop, a lower bound on the memory of one lane."""
    is_one_point: bool = False
    """Whether all lanes have the same hyper-parameters. They are then one number each, and not a batch."""
    num_segments: int = 1
    segment_axis: str | None = None
    state: tuple[jax.ShapeDtypeStruct, ...] = ()
    """The state of one lane between segments."""

    def least_bytes(self, num_lanes: int) -> int:
        """Return a lower bound on the memory of a batch of `num_lanes` lanes."""
        outputs = sum(output.num_bytes for output in self.outputs) // self.num_segments
        return max(self.loop_bytes, num_lanes * outputs)

    def chunk_specs(self, num_lanes: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Return shape and dtype of each output of a batch of `num_lanes` lanes."""
        return {
            output.name: jax.ShapeDtypeStruct((num_lanes, *output.shape), output.dtype)
            for output in self.outputs
        }

    def arguments(self, num_lanes: int) -> tuple[Any, ...]:
        """Return shape and dtype of the arguments of a chunk's function."""
        key_data = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=self.key_impl)))
        batch = () if self.is_one_point else (num_lanes,)
        return (
            jax.ShapeDtypeStruct(key_data.shape, key_data.dtype),
            jax.ShapeDtypeStruct((num_lanes,), np.uint32),
            {name: jax.ShapeDtypeStruct(batch, dtype) for name, dtype in self.param_dtypes.items()},
            [jax.ShapeDtypeStruct((num_lanes, *leaf.shape), leaf.dtype) for leaf in self.state],
            jax.ShapeDtypeStruct((), np.int32),
        )


@collector_paused()
def trace(
    run_fn: Callable[..., Any] | AbstractSegmentedRun,
    points: Points,
    key: Any,
    *,
    dims: Mapping[str, Sequence[str]] | None = None,
    meter: Meter | None = None,
) -> Program:
    """Return the program of `run_fn`, traced for one lane.

    With a `meter`, ticks of `run_fn` become host callbacks that report to it; without, they are left out.
    """
    param_dtypes = {
        name: np.dtype(jax.dtypes.canonicalize_dtype(values.dtype)) for name, values in points.values.items()
    }
    for name, dtype in param_dtypes.items():
        check_fits_dtype(name, points.values[name], dtype)
    specs = {name: jax.ShapeDtypeStruct((), dtype) for name, dtype in param_dtypes.items()}
    segmented = as_segmented(run_fn, tuple(specs))
    found: list[tuple[str, tuple[str, ...]]] = []

    def lane(key, params, state, segment):
        shared, begin = segmented.start(key=key, **params)
        leaves, structure = jax.tree.flatten(begin)
        # The state that the first segment is given has the right shape and is not used.
        leaves = [jnp.where(segment == 0, new, old) for new, old in zip(leaves, state, strict=True)]
        outputs, state = segmented.advance(shared, jax.tree.unflatten(structure, leaves), segment)
        named = _named_leaves(outputs, dims or {})
        found[:] = [(name, axes) for name, axes, _ in named]
        return [leaf for _, _, leaf in named], jax.tree.leaves(state)

    with traced_with(meter):
        state = [
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
            for leaf in jax.eval_shape(
                lambda key, params: jax.tree.leaves(segmented.start(key=key, **params)[1]), key, specs
            )
        ]
        segment = jax.ShapeDtypeStruct((), np.int32)
        jaxpr, (shapes, _) = jax.make_jaxpr(lane, return_shape=True)(key, specs, state, segment)
    if not found:
        fail("run_fn", "a function that returns arrays", "none")
    unknown = set(dims or {}) - {name for name, _ in found} - {name.split(".")[-1] for name, _ in found}
    if unknown:
        fail("dims", f"axes of outputs among {[name for name, _ in found]}", sorted(unknown))

    def whole(axes: tuple[str, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
        times = [segmented.num_segments if axis == segmented.segment_axis else 1 for axis in axes]
        return tuple(size * factor for size, factor in zip(shape, times, strict=True))

    outputs = tuple(
        Output(name, axes, whole(axes, shape.shape), np.dtype(shape.dtype))
        for (name, axes), shape in zip(found, shapes, strict=True)
    )
    impl = str(jax.random.key_impl(key))
    is_one_point = points.num_points == 1
    one_chunk = _chunk_fn(jaxpr, len(outputs), impl, is_one_point)
    return Program(
        lambda num_lanes: one_chunk,
        outputs,
        param_dtypes,
        impl,
        _digest(jaxpr),
        _loop_bytes(jaxpr),
        is_one_point,
        segmented.num_segments,
        segmented.segment_axis,
        tuple(state),
    )


def _chunk_fn(jaxpr: Any, num_outputs: int, key_impl: str, is_one_point: bool) -> Callable[..., Any]:
    """Return the function of a chunk: `fn(key_data, seeds, params, state, segment) -> outputs, state`."""

    def lane(base, seed, params, state, segment):
        leaves = jax.tree.leaves((jax.random.fold_in(base, seed), params, state, segment))
        answer = eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *leaves)
        return answer[:num_outputs], answer[num_outputs:]

    def chunk(key_data, seeds, params, state, segment):
        base = jax.random.wrap_key_data(key_data, impl=key_impl)
        axes = (None, 0, None if is_one_point else 0, 0, None)
        return jax.vmap(lane, in_axes=axes)(base, seeds, params, state, segment)

    return chunk


def stored_program(description: str, num_lanes: int, trace_fn: Callable[[], Program]) -> Program:
    """Return the program that `trace_fn` returns, from the program cache if it is stored there.

    `trace_fn` is called only if the program of a chunk of `num_lanes` lanes is not stored, so `description`
    must identify the traced function. Without a cache folder this is `trace_fn()`.
    """
    traced: list[Program] = []

    def program() -> Program:
        if not traced:
            traced.append(trace_fn())
        return traced[0]

    def find(num_lanes: int) -> tuple[Callable[..., Any], Any]:
        def make():
            return program().chunk_fn(num_lanes), program().arguments(num_lanes), _about(program())

        return stored(f"{description} {num_lanes}", make)

    call, about = find(num_lanes)
    known = {num_lanes: call}

    def chunk_fn(num_lanes: int) -> Callable[..., Any]:
        if num_lanes not in known:
            known[num_lanes], _ = find(num_lanes)
        return known[num_lanes]

    return _program_about(about, chunk_fn)


def _about(program: Program) -> dict[str, Any]:
    """Return everything but the function of a program, as JSON."""
    return {
        "outputs": [[o.name, o.dims, o.shape, str(o.dtype)] for o in program.outputs],
        "params": {name: str(dtype) for name, dtype in program.param_dtypes.items()},
        "state": [[leaf.shape, str(leaf.dtype)] for leaf in program.state],
        "rest": [
            program.key_impl,
            program.digest,
            program.loop_bytes,
            program.is_one_point,
            program.num_segments,
            program.segment_axis,
        ],
    }


def _program_about(about: Mapping[str, Any], chunk_fn: Callable[[int], Callable[..., Any]]) -> Program:
    outputs = [
        Output(name, tuple(dims), tuple(shape), np.dtype(dtype))
        for name, dims, shape, dtype in about["outputs"]
    ]
    state = [jax.ShapeDtypeStruct(tuple(shape), np.dtype(dtype)) for shape, dtype in about["state"]]
    params = {name: np.dtype(dtype) for name, dtype in about["params"].items()}
    return Program(chunk_fn, tuple(outputs), params, *about["rest"], state=tuple(state))


def _named_leaves(tree: Any, dims: Mapping[str, Sequence[str]]) -> list[tuple[str, tuple[str, ...], Any]]:
    """Return name, axes and value of each array in `tree`. The `carry` of a `LifelongResult` is left out."""

    def is_result(node):
        return isinstance(node, LifelongResult)

    answer = []
    for path, node in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_result)[0]:
        prefix = jax.tree_util.keystr(path, simple=True, separator=".")
        if is_result(node):
            parts = {f"{prefix}.{field}" if prefix else field: field for field in _RESULT_DIMS}
            members = [(name, getattr(node, field), _RESULT_DIMS[field]) for name, field in parts.items()]
        else:
            members = [(prefix or "value", node, None)]
        for name, value, usual in members:
            leaf = _storable(jnp.asarray(value))
            given = dims.get(name, dims.get(name.split(".")[-1]))
            if given is not None and len(given) != leaf.ndim:
                fail("dims", f"{leaf.ndim} names for the axes of {name}", tuple(given))
            numbered = tuple(f"{name}_{place}" for place in range(leaf.ndim))
            answer.append((name, tuple(given) if given is not None else usual or numbered, leaf))
    return answer


def _storable(leaf: jax.Array) -> jax.Array:
    """Convert keys to their key data, and dtypes that NumPy lacks, such as bfloat16, to float32."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return leaf if np.dtype(leaf.dtype).kind in "biufc" else leaf.astype(jnp.float32)


def _loop_bytes(jaxpr: Any) -> int:
    """Return the largest size of one loop's results. Unlike other intermediates, these are never fused."""

    def of(jaxpr) -> int:
        most = 0
        for equation in jaxpr.eqns:
            if equation.primitive.name in ("scan", "while"):
                shapes = [var.aval for var in equation.outvars]
                sizes = [math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 1) for aval in shapes]
                most = max(most, sum(sizes))
            most = max([most, *(of(inner) for inner in _inner_jaxprs(equation.params.values()))])
        return most

    return of(jaxpr.jaxpr)


def _inner_jaxprs(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the jaxprs among an equation's parameters, such as the body of a loop."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _inner_jaxprs(value)
        elif hasattr(value, "jaxpr") and hasattr(value, "consts"):
            yield value.jaxpr
        elif hasattr(value, "eqns"):
            yield value


def _digest(jaxpr: Any) -> str:
    sha = hashlib.sha256()

    def add(closed):
        for const in closed.consts:
            array = np.asarray(jax.random.key_data(const) if _is_key(const) else const)
            sha.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        for equation in closed.jaxpr.eqns:
            add_params(equation.params.values())

    def add_params(values):
        for value in values:
            if hasattr(value, "jaxpr") and hasattr(value, "consts"):
                add(value)
            elif isinstance(value, tuple | list):
                add_params(value)
            elif hasattr(value, "eqns"):
                for equation in value.eqns:
                    add_params(equation.params.values())

    sha.update(str(jaxpr).encode())
    add(jaxpr)
    return sha.hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of jlibo and of the libraries that its results depend on."""
    below = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
    return {"jlibo": __version__, **below}


def double_precision() -> bool:
    """Return whether jax currently computes in double precision."""
    return jnp.result_type(float) == jnp.float64


def _is_key(value: Any) -> bool:
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
