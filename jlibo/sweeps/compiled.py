"""The compiled program of a sweep.

Every device runs a whole chunk, so the batch shape is the same on one device, on eight, and on a remote
worker. Batches of different shapes are vectorised differently and round differently.

One difference remains. A program for several devices passes the compiler's simplification once more than a
program for a single device. It may multiply constants in another order, so the last bit of a float may differ
between one device and several. Between 2 and 8 devices no bit differed in our tests.
"""

from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jlibo.host_memory import BudgetError
from jlibo.programs import options
from jlibo.programs.collector import collector_paused
from jlibo.sweeps.points import Plan
from jlibo.sweeps.program import Program

LANE = "lane"
LEVEL = 2
"""How much the compiler optimises, by default; see `jlibo.programs.options`."""


@final
class CompiledChunks:
    """The compiled program, which runs one chunk on each of `devices` at the same time."""

    def __init__(self, program: Program, chunk: int, devices: Sequence[Any], key: Any, *, level: int = LEVEL):
        self.program, self.chunk, self.devices = program, chunk, tuple(devices)
        self._key_data = np.asarray(jax.random.key_data(key))
        self._arguments = program.arguments(chunk * len(self.devices))
        one_device = program.chunk_fn(chunk)
        if len(self.devices) == 1:
            place = SingleDeviceSharding(self.devices[0])
            jitted = jax.jit(one_device, in_shardings=place, out_shardings=place)
        else:
            mesh = Mesh(np.asarray(self.devices), (LANE,), axis_types=(AxisType.Auto,))
            split, whole = PartitionSpec(LANE), PartitionSpec()
            specs = (whole, split, whole if program.is_one_point else split, split, whole)
            # Devices do not communicate, so the check of replicated values is not needed.
            sharded = jax.shard_map(one_device, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)
            jitted = jax.jit(sharded, in_shardings=tuple(NamedSharding(mesh, spec) for spec in specs))
        with collector_paused():
            lowered = jitted.lower(*self._arguments)
        self._compiled: Any = options.compiled(lowered, level, self.devices[0].platform)

    def bytes_per_device(self) -> int | None:
        """Return the bytes that the program needs on one device, or None if the compiler does not say."""
        analysis = self._compiled.memory_analysis()
        if analysis is None:
            return None
        return analysis.temp_size_in_bytes + analysis.output_size_in_bytes + analysis.argument_size_in_bytes

    def run(
        self, plan: Plan, numbers: Sequence[int], *, segment_fn: Callable[[], None] = lambda: None
    ) -> list[list[np.ndarray]]:
        """Return the outputs of each chunk in `numbers`, at most one per device.

        Devices without a chunk repeat the last one. `segment_fn` is called after every segment.
        """
        filled = [*numbers, *[numbers[-1]] * (len(self.devices) - len(numbers))]
        inputs = [plan.inputs(number) for number in filled]
        seeds = np.concatenate([seeds for seeds, _ in inputs])
        params = {
            name: np.concatenate([values[name] for _, values in inputs]).astype(dtype)
            for name, dtype in self.program.param_dtypes.items()
        }
        if self.program.is_one_point:
            params = {name: values[0] for name, values in params.items()}
        try:
            leaves = self._run_segments(seeds, params, segment_fn)
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

    def _run_segments(self, seeds, params, segment_fn: Callable[[], None]) -> list[np.ndarray]:
        program = self.program
        state: Any = [np.zeros(spec.shape, spec.dtype) for spec in self._arguments[3]]
        parts = []
        for segment in range(program.num_segments):
            outputs, state = self._compiled(self._key_data, seeds, params, state, np.int32(segment))
            parts.append([np.asarray(leaf) for leaf in outputs])
            segment_fn()
        if len(parts) == 1:
            return parts[0]
        joined = []
        for output, *leaves in zip(program.outputs, *parts, strict=True):
            if program.segment_axis in output.dims:
                # The first axis is that of the lanes.
                leaves = [np.concatenate(leaves, axis=1 + output.dims.index(program.segment_axis))]
            joined.append(leaves[-1])
        return joined
