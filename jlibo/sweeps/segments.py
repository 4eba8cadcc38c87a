"""Runs in segments, and functions as runs of one segment."""

import abc
import inspect
from collections.abc import Callable
from typing import Any, final

from jlibo.checks import fail


class AbstractSegmentedRun(abc.ABC):
    """A run that is computed in segments of equal size, one after the other.

    `sweep` takes it in place of a function. Between segments, progress is reported and an interrupt takes
    effect. Both would otherwise need a host callback in the compiled program.
    """

    @property
    @abc.abstractmethod
    def num_segments(self) -> int:
        """Number of segments of a run."""

    @property
    @abc.abstractmethod
    def segment_axis(self) -> str:
        """Name of the axis along which the outputs of segments are concatenated.

        Of outputs without this axis, those of the last segment are kept.
        """

    @abc.abstractmethod
    def start(self, *, key: Any, **params: Any) -> tuple[Any, Any]:
        """Return what all segments use, and the state before the first segment, as trees of arrays.

        **Arguments:**

        - `key`, `params`: those of the run.
        """

    @abc.abstractmethod
    def advance(self, shared: Any, state: Any, segment: Any) -> tuple[Any, Any]:
        """Return the outputs of a segment and the state after it.

        **Arguments:**

        - `shared`: the first result of `start`, which is computed anew in every segment.
        - `state`: the state before the segment.
        - `segment`: number of the segment, from 0; may be traced.
        """


def as_segmented(
    run_fn: Callable[..., Any] | AbstractSegmentedRun, names: tuple[str, ...]
) -> AbstractSegmentedRun:
    """Return `run_fn` as a segmented run; a function becomes one segment. `names` are its parameters."""
    return run_fn if isinstance(run_fn, AbstractSegmentedRun) else _OneSegment(run_fn, names)


@final
class _OneSegment(AbstractSegmentedRun):
    """A function as a run of one segment, without state."""

    def __init__(self, run_fn: Callable[..., Any], names: tuple[str, ...]):
        self._call = _caller(run_fn, names)

    @property
    def num_segments(self):
        return 1

    @property
    def segment_axis(self):
        return ""

    def start(self, *, key, **params):
        return (key, params), ()

    def advance(self, shared, state, segment):
        return self._call(*shared), ()


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
