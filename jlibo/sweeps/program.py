"""The program of a sweep: the user's function, traced for one lane and compiled for one chunk per device.

Every device runs a whole chunk, so the batch shape is the same on one device, on eight, and on a remote
worker. Batches of different shapes are vectorised differently and round differently.

One difference remains. A program for several devices passes the compiler's simplification once more than a
program for a single device. It may multiply constants in another order, so the last bit of a float may differ
between one device and several. Between 2 and 8 devices no bit differed in our tests.
"""

import dataclasses
import hashlib
import importlib.metadata
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import eval_jaxpr
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jlibo.checks import fail
from jlibo.host_memory import BudgetError
from jlibo.lifelong.loop import LifelongResult
from jlibo.sweeps.points import Plan, Points, check_fits_dtype
from jlibo.sweeps.progress import Meter, traced_with
from jlibo.version import __version__

LANE = "lane"
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

    jaxpr: Any
    outputs: tuple[Output, ...]
    param_dtypes: dict[str, np.dtype]
    key_impl: str
    digest: str
    """SHA-256 of the operations and their constants. Different programs have different digests."""
    loop_bytes: int
    """Size of the results of the largest loop, a lower bound on the memory of one lane."""

    def least_bytes(self, num_lanes: int) -> int:
        """Return a lower bound on the memory of a batch of `num_lanes` lanes."""
        return max(self.loop_bytes, num_lanes * sum(output.num_bytes for output in self.outputs))

    def chunk_specs(self, num_lanes: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Return shape and dtype of each output of a batch of `num_lanes` lanes."""
        return {
            output.name: jax.ShapeDtypeStruct((num_lanes, *output.shape), output.dtype)
            for output in self.outputs
        }


def trace(
    run_fn: Callable[..., Any],
    points: Points,
    key: Any,
    *,
    dims: Mapping[str, Sequence[str]] | None = None,
    meter: Meter | None = None,
) -> Program:
    """Return the program of `run_fn`, traced for one lane.

    With a `meter`, ticks of `run_fn` become host callbacks that report to it; without, they are left out.
    """
    call = _caller(run_fn, tuple(points.values))
    found: list[tuple[str, tuple[str, ...]]] = []

    def lane(key, params):
        leaves = _named_leaves(call(key, params), dims or {})
        found[:] = [(name, axes) for name, axes, _ in leaves]
        return [leaf for _, _, leaf in leaves]

    param_dtypes = {
        name: np.dtype(jax.dtypes.canonicalize_dtype(values.dtype)) for name, values in points.values.items()
    }
    for name, dtype in param_dtypes.items():
        check_fits_dtype(name, points.values[name], dtype)
    specs = {name: jax.ShapeDtypeStruct((), dtype) for name, dtype in param_dtypes.items()}
    with traced_with(meter):
        jaxpr, shapes = jax.make_jaxpr(lane, return_shape=True)(key, specs)
    if not found:
        fail("run_fn", "a function that returns arrays", "none")
    unknown = set(dims or {}) - {name for name, _ in found} - {name.split(".")[-1] for name, _ in found}
    if unknown:
        fail("dims", f"axes of outputs among {[name for name, _ in found]}", sorted(unknown))
    outputs = tuple(
        Output(name, axes, tuple(shape.shape), np.dtype(shape.dtype))
        for (name, axes), shape in zip(found, shapes, strict=True)
    )
    return Program(
        jaxpr, outputs, param_dtypes, str(jax.random.key_impl(key)), _digest(jaxpr), _loop_bytes(jaxpr)
    )


def _caller(run_fn: Callable[..., Any], names: tuple[str, ...]) -> Callable[[Any, dict], Any]:
    """Return a function that calls `run_fn`, with `key` by name if it has such an argument, else first."""
    try:
        parameters = inspect.signature(run_fn).parameters
    except (TypeError, ValueError):
        return lambda key, params: run_fn(key, **params)
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    missing = [name for name in names if name not in parameters]
    if missing and not takes_any:
        fail("run_fn", f"a function of key, {', '.join(names)}", f"one without an argument {missing[0]}")
    if "key" in parameters and parameters["key"].kind is not inspect.Parameter.POSITIONAL_ONLY:
        return lambda key, params: run_fn(**params, key=key)
    return lambda key, params: run_fn(key, **params)


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


@final
class CompiledChunks:
    """The compiled program, which runs one chunk on each of `devices` at the same time."""

    def __init__(self, program: Program, chunk: int, devices: Sequence[Any], key: Any):
        self.program, self.chunk, self.devices = program, chunk, tuple(devices)
        mesh = Mesh(np.asarray(self.devices), (LANE,), axis_types=(AxisType.Auto,))
        split, whole = PartitionSpec(LANE), PartitionSpec()
        num_lanes = chunk * len(self.devices)
        self._key_data = np.asarray(jax.random.key_data(key))

        def lane(base, seed, params):
            leaves = jax.tree.leaves((jax.random.fold_in(base, seed), params))
            return eval_jaxpr(program.jaxpr.jaxpr, program.jaxpr.consts, *leaves)

        def one_device(key_data, seeds, params):
            base = jax.random.wrap_key_data(key_data, impl=program.key_impl)
            return jax.vmap(lane, in_axes=(None, 0, 0))(base, seeds, params)

        specs = (
            jax.ShapeDtypeStruct(self._key_data.shape, self._key_data.dtype),
            jax.ShapeDtypeStruct((num_lanes,), np.uint32),
            {name: jax.ShapeDtypeStruct((num_lanes,), dtype) for name, dtype in program.param_dtypes.items()},
        )
        # Devices do not communicate, so the check of replicated values is not needed.
        sharded = jax.shard_map(
            one_device, mesh=mesh, in_specs=(whole, split, split), out_specs=split, check_vma=False
        )
        shardings = tuple(NamedSharding(mesh, spec) for spec in (whole, split, split))
        self._compiled = jax.jit(sharded, in_shardings=shardings).lower(*specs).compile()

    def bytes_per_device(self) -> int | None:
        """Return the bytes that the program needs on one device, or None if the compiler does not say."""
        analysis = self._compiled.memory_analysis()
        if analysis is None:
            return None
        return analysis.temp_size_in_bytes + analysis.output_size_in_bytes + analysis.argument_size_in_bytes

    def run(self, plan: Plan, numbers: Sequence[int]) -> list[list[np.ndarray]]:
        """Return the outputs of each chunk in `numbers`, at most one per device.

        Devices without a chunk repeat the last one.
        """
        filled = [*numbers, *[numbers[-1]] * (len(self.devices) - len(numbers))]
        inputs = [plan.inputs(number) for number in filled]
        seeds = np.concatenate([seeds for seeds, _ in inputs])
        params = {
            name: np.concatenate([values[name] for _, values in inputs]).astype(dtype)
            for name, dtype in self.program.param_dtypes.items()
        }
        try:
            leaves = [np.asarray(leaf) for leaf in self._compiled(self._key_data, seeds, params)]
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise BudgetError(
                f"a chunk of {self.chunk} runs does not fit into a device's memory: give a smaller `chunk`."
            ) from None
        answer = []
        for place, number in enumerate(numbers):
            begin = place * self.chunk
            answer.append([leaf[begin : begin + plan.num_present(number)] for leaf in leaves])
        return answer
