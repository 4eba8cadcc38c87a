"""Calls of functions by compiled programs that later processes find on disk.

`Programs(keep=True).run(fn, *args)` returns what `fn(*args)` returns. It looks for the program in this
process, then on disk, and else traces and compiles it. `prepare` starts the same in a thread, given only the
shapes of arguments that do not exist yet, so that several programs are compiled or loaded at once.

Only programs for a single CPU device are stored. Everything else is called as without a store: other
platforms, arrays on other devices, traced arguments, and functions with settings of jax for debugging.
"""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jlibo.checks import is_concrete
from jlibo.programs import executables, identity, options
from jlibo.programs.collector import collector_paused
from jlibo.programs.executables import Executable
from jlibo.programs.folder import is_wanted

_JITTED: Any = type(eqx.filter_jit(lambda: None))
MOST_HELD = 256
"""Programs that a process holds; the least recently used one is dropped."""
NUM_THREADS = 3

_held: "OrderedDict[Any, _Started]" = OrderedDict()
_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None


@final
class Programs(NamedTuple):
    """How the functions of a model are compiled."""

    keep: bool = True
    """Whether programs are stored on disk; the environment variable `JLIBO_CACHE=0` has precedence."""
    level: int = 1
    """How much the compiler optimises; see `jlibo.programs.options`."""

    @property
    def quick(self) -> "Programs":
        """The same for functions that take longer to compile than to run."""
        return self._replace(level=0)

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return `fn(*args, **kwargs)` for a function that `eqx.filter_jit` made."""
        call = self._call(fn, args, kwargs)
        if call is None:
            return fn(*args, **kwargs)
        program = _program(call)
        return jax.tree.unflatten(program.structure, program.call(*call.arrays))

    def prepare(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Start to load or to compile the program of `run` with such arguments.

        Arrays may be `jax.ShapeDtypeStruct`s. Tracing, if it is necessary, is finished when this returns.

        **Returns:** the shapes of the results, or None if the function is called as without a store.
        """
        call = self._call(fn, args, kwargs)
        return None if call is None else _started(call).shapes

    def _call(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> "_Call | None":
        """Return the call if its program can be stored, else None."""
        if not isinstance(fn, _JITTED) or not _is_usual():
            return None
        return _Call.of(fn, args, kwargs, self)


UNSTORED = Programs(keep=False)
"""Programs are compiled in every process."""


@final
class _Call(NamedTuple):
    """A function and its arguments: the arrays, and all the rest, which the program depends on."""

    fn: Any
    arrays: list[Any]
    places: tuple[int, ...]
    """Positions of the arrays among the leaves of the arguments."""
    rest: tuple[Any, ...]
    """The other leaves, with None in place of the arrays, and the name of the generator in that of keys."""
    structure: Any
    key: Any
    """The call's program in this process."""
    how: Programs

    @classmethod
    def of(cls, fn: Any, args: Any, kwargs: Any, how: Programs) -> "_Call | None":
        """Return a call; None if its arrays are traced, or not on the only device that is used here."""
        leaves, structure = jax.tree.flatten((args, kwargs))
        arrays, places, rest, shapes = [], [], [], []
        device = jax.local_devices()[0]
        for place, leaf in enumerate(leaves):
            if not isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct):
                rest.append(leaf)
                continue
            if isinstance(leaf, jax.Array) and (not is_concrete(leaf) or leaf.devices() != {device}):
                return None
            kind = None
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                if not isinstance(leaf, jax.Array):
                    return None
                kind = str(jax.random.key_impl(leaf))
                leaf = jax.random.key_data(leaf)
            rest.append(kind)
            arrays.append(leaf)
            places.append(place)
            shapes.append((tuple(leaf.shape), np.dtype(leaf.dtype), identity.is_weak(leaf)))
        rest, places = tuple(rest), tuple(places)
        key = (fn, structure, rest, places, tuple(shapes), identity.settings(), how.level)
        return cls(fn, arrays, places, rest, structure, key, how)

    def arguments(self, arrays: Any) -> tuple[Any, Any]:
        """Return the arguments with these arrays."""
        leaves = list(self.rest)
        for place, array in zip(self.places, arrays, strict=True):
            kind = self.rest[place]
            leaves[place] = array if kind is None else jax.random.wrap_key_data(array, impl=kind)
        return jax.tree.unflatten(self.structure, leaves)

    def shapes(self) -> list[jax.ShapeDtypeStruct]:
        return [
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=identity.is_weak(leaf))
            for leaf in self.arrays
        ]

    @collector_paused()
    def lowered(self) -> tuple[Any, Any]:
        """Return the traced program, to be compiled, and the structure of its results."""
        found = []
        inner = self.fn.__wrapped__

        def of_arrays(*arrays):
            args, kwargs = self.arguments(arrays)
            leaves, structure = jax.tree.flatten(inner(*args, **kwargs))
            # With dtypes of their own, so that the next program does not depend on how these were made.
            leaves = [jnp.asarray(leaf, jnp.result_type(leaf)) for leaf in leaves]
            shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
            found.append(jax.tree.unflatten(structure, shapes))
            return leaves

        of_arrays.__name__ = of_arrays.__qualname__ = inner.__name__
        return jax.jit(of_arrays).lower(*self.shapes()), found[0]

    def identity(self) -> str:
        """Return the text by which the program is found on disk.

        **Raises:** `identity.Unknown`.
        """
        inner = self.fn.__wrapped__
        kinds = [kind for kind in (self.rest[place] for place in self.places) if kind is not None]
        args, kwargs = jax.tree.unflatten(self.structure, self._with(self.shapes()))
        parts = [
            f"{inner.__module__}.{inner.__qualname__}",
            f"level {self.how.level}",
            identity.describe((args, kwargs)),
            *kinds,
        ]
        if inner.__module__.split(".")[0] != "jlibo" or "<locals>" in inner.__qualname__:
            raise identity.Unknown(inner.__qualname__)
        return _complete(parts)

    def _with(self, shapes: list[Any]) -> list[Any]:
        leaves = list(self.rest)
        for place, shape in zip(self.places, shapes, strict=True):
            leaves[place] = shape
        return leaves


def _complete(parts: list[str]) -> str:
    parts = [*parts, *map(str, identity.settings()), *identity.versions(), identity.machine()]
    return "\n".join([*parts, identity.sources(), identity.constants()])


def _is_usual() -> bool:
    """Return whether programs run on a single CPU device, compiled, without checks of every operation."""
    config = jax.config
    unusual = ("jax_disable_jit", "jax_debug_nans", "jax_debug_infs", "jax_default_device")
    if any(getattr(config, name, None) for name in unusual):
        return False
    return jax.default_backend() == "cpu"


@final
class _Started(NamedTuple):
    """A program that is held, or being loaded or compiled in a thread."""

    shapes: Any
    """The results, with shapes in place of arrays."""
    future: "Future[Executable | None]"
    """None if the stored program cannot be loaded."""


def _started(call: _Call) -> _Started:
    """Return the program of a call, which is held already, or start to make it."""
    with _lock:
        if call.key in _held:
            _held.move_to_end(call.key)
            return _held[call.key]
        lowered, path = _place(call)
        stored = None if path is None else executables.read(path)
        if stored is not None:
            started = _Started(stored.shapes, _threads().submit(executables.load, stored))
        else:
            started = _compiling(call, lowered, path)
        _held[call.key] = started
        while len(_held) > MOST_HELD:
            _held.popitem(last=False)
        return started


def _place(call: _Call) -> tuple[tuple[Any, Any] | None, Path | None]:
    """Return the file of a program, and the traced program if it had to be traced for that."""
    if not call.how.keep or not is_wanted():
        return None, None
    try:
        return None, executables.path_of(call.identity())
    except identity.Unknown:
        # The traced program says everything. It is not compiled again, but it has to be traced.
        lowered = call.lowered()
        return lowered, executables.path_of(_complete([lowered[0].as_text(), f"level {call.how.level}"]))


def _compiling(call: _Call, lowered: tuple[Any, Any] | None, path: Path | None) -> _Started:
    # Traced in this thread, which has the settings of jax; the compiler runs beside it.
    traced, shapes = lowered or call.lowered()
    future: Future[Any] = _threads().submit(_compile, traced, shapes, call, path)
    return _Started(shapes, future)


def _compile(traced: Any, shapes: Any, call: _Call, path: Path | None) -> Executable:
    program = Executable(options.compiled(traced, call.how.level), shapes, jax.tree.structure(shapes))
    payload = None if path is None else executables.packed(program, len(call.arrays))
    if path is not None and payload is not None:
        # The caller has the program before it is on disk. The process does not end before.
        with contextlib.suppress(RuntimeError):  # the interpreter is ending
            _threads().submit(executables.save, path, payload)
    return program


def _program(call: _Call) -> Executable:
    """Return the program of a call."""
    try:
        program = _started(call).future.result()
        if program is None:  # what is stored cannot be loaded, and is replaced
            with _lock:
                _held[call.key] = _compiling(call, *_place(call))
            program = _held[call.key].future.result()
    except BaseException:
        _held.pop(call.key, None)
        raise
    assert program is not None
    return program


def forget() -> None:
    """Drop the programs that this process holds."""
    with _lock:
        _held.clear()


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="jlibo-compiler")
    return _pool
