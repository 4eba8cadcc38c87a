"""`sweep`: one function over seeds and hyper-parameters, in batches of one compiled program."""

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jlibo import npz
from jlibo.checks import check_count, fail
from jlibo.front_door import front_door, got
from jlibo.printable import printable
from jlibo.sweeps import budget as memory
from jlibo.sweeps import folder as folders
from jlibo.sweeps import progress as meters
from jlibo.sweeps.compiled import CompiledChunks
from jlibo.sweeps.engines import Finished, Processes, choose_devices, local_chunks
from jlibo.sweeps.labelled import Labelled, Variable
from jlibo.sweeps.points import SEED, Plan, Points, as_points, check_seeds
from jlibo.sweeps.program import Program, double_precision, stored_program, trace, versions
from jlibo.sweeps.segments import AbstractSegmentedRun

if TYPE_CHECKING:
    from distributed import Client


@front_door
def sweep(
    run_fn: Callable[..., Any] | AbstractSegmentedRun,
    grid: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    *,
    num_seeds: int = 1,
    first_seed: int = 0,
    chunk: int | None = None,
    memory_budget: int | None = None,
    devices: int | Sequence[Any] | None = None,
    num_threads: int = 1,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    client: "Client | None" = None,
    progress: bool | meters.ProgressFn = False,
    attrs: Mapping[str, Any] | None = None,
    program_name: str | None = None,
    key: PRNGKeyArray,
) -> Labelled:
    """Run `run_fn(key=key, **point)` for every point of a grid and every seed. `run_fn` is traced once.

    **Arguments:**

    - `run_fn`: a function of `key` and the hyper-parameters of `grid` that works under `jit` and `vmap`. If
      it has no argument named `key`, the key is its first argument. Returns a tree of arrays, such as one
      array, a dictionary or a `LifelongResult`. Or an `AbstractSegmentedRun`.
    - `grid`: `{"lam": [0.1, 0.5], "omega": [0.2, 0.3]}` for all combinations, or
      `[{"lam": 0.1, "omega": 0.2}, ...]` for a list of points.
    - `num_seeds`, `first_seed`: seeds are `first_seed`, `first_seed + 1`, .... Seed i uses
      `jax.random.fold_in(key, i)` at every point.
    - `chunk`: number of runs in one batch on one device. By default the stored size if `out` is resumed, else
      chosen to fit into `memory_budget`. With the same chunk, results are equal bit for bit in any order,
      after any interruption and on Dask. Between one device and several, the last bit of a float may differ.
    - `memory_budget`: bytes per device; by default half of the free memory.
    - `devices`: number of local devices or a list of them; by default all.
    - `num_threads`: number of chunks that a single CPU device computes at a time. More than 1 is faster, and
      gives the same result. A function that calls LAPACK in a loop can deadlock with several (jax 0.10).
    - `dims`: names of the axes of outputs, such as `{"curve": ("step",)}`. Those of a `LifelongResult` are
      known.
    - `coords`: values along axes of outputs, such as `{"agent": ["full", "libo"]}`.
    - `out`: folder to which every finished chunk is written. The same call resumes an interrupted sweep.
    - `client`: a `distributed.Client`; chunks become tasks of its cluster.
    - `progress`: True for a progress bar, or a function of the share of work done and a word. It advances per
      chunk, and without `out` and `client` also by the ticks of `run_fn` (`sweeps.tick`).
    - `attrs`: metadata for the result, as JSON. A folder is resumed only with the same `attrs`.
    - `program_name`: identifies `run_fn` and everything it closes over. If given, the traced program is
      stored in the cache folder of jax, and another process with the same name does not trace again. Changes
      of the function's code are not noticed.
    - `key`: JAX PRNG key.

    **Returns:** a `Labelled`. Its axes are those of the points, then `seed`, then those of each output. Under
    `jax.distributed` each process computes a share of the chunks, and every process returns the whole result;
    `out` must then be a folder that all processes share.

    **Raises:**

    - `ValueError`: an argument is invalid; the message names it.
    - `BudgetError`: a run, a chunk or the result needs more memory than there is.
    - `SweepFolderError`: `out` holds another sweep or other files, is in use, or cannot be written.
    - `SweepStorageError`: reading or writing a file failed, for example because the disk is full.

    ```python
    import jax
    import jlibo

    def walk(drift, *, key):
        return {"position": (drift + jax.random.normal(key, (100,))).cumsum()}

    result = jlibo.sweep(
        walk, {"drift": [0.0, 0.1]}, num_seeds=50, dims={"position": ("step",)}, key=jax.random.key(0)
    )
    print(result)  # axes drift, seed and step
    mean, error = result.mean_and_error("position")  # [drift, step] each, over seeds
    ```
    """
    points = as_points(grid)
    check_seeds(num_seeds, first_seed)
    key = _new_style(key)
    _check_client(client)
    with contextlib.ExitStack() as stack:
        report_fn = meters.progress_fn(progress, stack, name="sweep")
        meter = None if report_fn is None else meters.Meter(report_fn)
        if meter is not None:
            meter.say("tracing")
        inner = meter if out is None and client is None else None
        local = choose_devices(1 if client is not None else devices)
        check_count("num_threads", num_threads)
        if num_threads > 1 and (len(local) > 1 or local[0].platform != "cpu"):
            fail("num_threads", "1 with several devices or an accelerator", num_threads)

        def traced() -> Program:
            return trace(run_fn, points, key, dims=dims, meter=inner)

        if program_name is None or len(local) > 1 or client is not None:
            program = traced()
        else:
            usual = memory.wanted_chunk(points.num_points * num_seeds, local) if chunk is None else chunk
            swept = f"{sorted(points.values)} {'one point' if points.num_points == 1 else 'points'}"
            program = stored_program(f"{program_name} {swept}", usual, traced)
        memory.check_result(program, points.num_points * num_seeds)
        empty = _coordinates(points, num_seeds, first_seed, program, coords)
        processes = Processes()
        if client is not None and processes.count > 1:
            fail("client", "None under jax.distributed, which shares out the chunks itself", client)

        def identity(chunk: int) -> dict[str, Any]:
            return _identity(program, points, num_seeds, first_seed, chunk, key, attrs)

        path = None if out is None else Path(out)
        problem = None
        if path is not None and processes.is_first:
            try:
                stack.enter_context(folders.locked(path))
                chunk = chunk if chunk is not None else folders.stored_chunk(path, identity(1))
            except folders.SweepFolderError as error:
                problem = str(error)
        _stop_together(processes, problem)

        def compile_for(chunk: int) -> CompiledChunks:
            if meter is not None:
                meter.say("compiling")
            return CompiledChunks(program, chunk, local, key)

        compiled, chunk = _chosen_program(
            program,
            compile_for,
            points.num_points * num_seeds,
            chunk=chunk,
            memory_budget=memory_budget,
            local=local,
            client=client,
            processes=processes,
        )
        plan = Plan(points, num_seeds, first_seed, chunk)
        folder = None
        if path is not None:
            if processes.is_first:
                try:
                    folder = folders.open_folder(path, identity(chunk))
                except folders.SweepFolderError as error:
                    problem = str(error)
            _stop_together(processes, problem)
            folder = folder or folders.join_folder(path, identity(chunk))

        names = [output.name for output in program.outputs]
        numbers = processes.share(range(plan.num_chunks))
        todo = numbers
        if folder is not None:
            todo = folder.missing(
                (number, program.chunk_specs(plan.num_present(number))) for number in numbers
            )
        if meter is not None:
            meter.expect(len(numbers), len(numbers) - len(todo))
        finished: Generator[Finished, None, None]
        if not todo:
            finished = (one for one in ())
        elif client is not None:
            from jlibo.sweeps.dask_engine import dask_chunks

            finished = dask_chunks(client, run_fn, program, plan, todo, dims=dims, meter=meter, key=key)
        else:
            finished = local_chunks(
                _compiled_now(compiled, meter), plan, todo, meter, num_threads=num_threads
            )
        parts: dict[int, list[np.ndarray]] = {}
        with contextlib.closing(finished):
            for number, arrays in finished:
                if folder is None:
                    parts[number] = arrays
                else:
                    folder.write_chunk(number, dict(zip(names, arrays, strict=True)))
        lanes = _collect(processes, plan, program, folder, parts)
        result = Labelled(
            {
                output.name: Variable((*points.dims, SEED, *output.dims), plan.unfold(lanes.pop(output.name)))
                for output in program.outputs
            },
            empty.coords,
            {**_record(identity(chunk)), **(attrs or {})},
        )
        if folder is not None:
            if processes.is_first:
                with folders.storage_errors(f"write '{printable(folder.result_path)}'", folder.path):
                    result.save(folder.result_path)
            processes.wait("jlibo-sweep-written")
    return result


def _check_client(client: Any) -> None:
    """Raise a `ValueError` unless `client` is None or a client of Dask, which may not be installed."""
    if client is None:
        return
    try:
        from distributed import Client
    except ImportError:
        fail("client", "None, since Dask is not installed (pip install 'jlibo[dask]')", got(client))
    if not isinstance(client, Client):
        fail("client", "a distributed.Client", got(client))


def _new_style(key: Any) -> Any:
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)


def _coordinates(
    points: Points, num_seeds: int, first_seed: int, program: Program, coords: Mapping[str, Any] | None
) -> Labelled:
    """Return all coordinates. They are checked against the outputs before anything is computed."""
    known = dict(points.coords)
    known[SEED] = Variable((SEED,), np.arange(first_seed, first_seed + num_seeds))
    sizes = {dim: n for output in program.outputs for dim, n in zip(output.dims, output.shape, strict=True)}
    for dim in sizes:
        if dim in known:
            fail("dims", f"names other than the sweep's own {', '.join(known)}", repr(dim))
    for dim, values in (coords or {}).items():
        if dim not in sizes:
            fail("coords", f"along axes among {', '.join(sizes)}", repr(dim))
        known[dim] = Variable((dim,), np.asarray(values))
    # The check needs only shapes: a broadcast array of one element does not allocate the result.
    stand_ins = {
        output.name: Variable(output.dims, np.broadcast_to(np.zeros((), output.dtype), output.shape))
        for output in program.outputs
    }
    return Labelled(stand_ins, known)


def _chosen_program(
    program: Program,
    compile_for: Callable[[int], CompiledChunks],
    num_lanes: int,
    *,
    chunk: int | None,
    memory_budget: int | None,
    local: Sequence[Any],
    client: Any,
    processes: Processes,
) -> tuple[Callable[[], CompiledChunks], int]:
    """Return a function that returns the compiled program, and the chunk size.

    The program is compiled here only if that is needed to choose the chunk size.
    """
    if memory_budget is not None:
        check_count("memory_budget", memory_budget)
    elsewhere = None
    if client is not None:
        from jlibo.sweeps.dask_engine import worker_memory

        elsewhere = worker_memory(client)
    here = memory.free_of(local)
    compiled = None
    if chunk is not None:
        # A chunk size that was given or stored in a folder may use all of the free memory.
        limit = here if client is None else elsewhere
        if limit is not None:
            memory.check_chunk(program, chunk, limit)
    elif processes.is_first:
        free = here if elsewhere is None else elsewhere
        budget = int(memory.SHARE * free) if memory_budget is None else memory_budget
        memory.check_one_run(program, budget)
        compiled = memory.fitting(compile_for, memory.wanted_chunk(num_lanes, local), budget)
        chunk = compiled.chunk
    chosen = processes.agree(chunk or 0)
    check_count("chunk", chosen)
    if compiled is None or compiled.chunk != chosen:
        return (lambda: memory.check_compiled(compile_for(chosen), here)), chosen
    return (lambda: compiled), chosen


def _compiled_now(compiled: Callable[[], CompiledChunks], meter: meters.Meter | None) -> CompiledChunks:
    answer = compiled()
    if meter is not None:
        meter.say("running")
    return answer


def _stop_together(processes: Processes, problem: str | None) -> None:
    told = processes.all_good(problem)
    if told is not None:
        raise folders.SweepFolderError(told)


def _collect(
    processes: Processes,
    plan: Plan,
    program: Program,
    folder: folders.SweepFolder | None,
    parts: dict[int, list[np.ndarray]],
) -> dict[str, np.ndarray]:
    """Return all lanes of each output, from memory or from the folder."""
    lanes = {output.name: plan.empty(output.shape, output.dtype) for output in program.outputs}
    if folder is None:
        parts = processes.gather(plan, program, parts)
    else:
        processes.wait("jlibo-sweep-computed")
    for number in range(plan.num_chunks):
        if folder is None:
            arrays = dict(zip(lanes, parts.pop(number), strict=True))
        else:
            arrays = _written(folder, number, program.chunk_specs(plan.num_present(number)))
        for name, array in arrays.items():
            lanes[name][plan.place(number)] = array
    return lanes


def _written(folder: folders.SweepFolder, number: int, specs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    try:
        return folder.read_chunk(number, specs)
    except (FileNotFoundError, npz.NpzError) as error:
        raise folders.SweepFolderError(
            f"'{printable(folder.chunk_path(number))}' has changed since it was written ({printable(error)})"
            ": run the same sweep again to compute it anew."
        ) from None


def _identity(
    program: Program,
    points: Points,
    num_seeds: int,
    first_seed: int,
    chunk: int,
    key: Any,
    attrs: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return everything that the numbers in a folder depend on."""
    return {
        "config": dict(attrs or {}),
        "versions": versions(),
        "platform": jax.default_backend(),
        "x64": double_precision(),
        "points": {
            "dims": list(points.dims),
            "shape": list(points.shape),
            **{name: values.tolist() for name, values in points.values.items()},
        },
        "num_seeds": num_seeds,
        "first_seed": first_seed,
        "key": [program.key_impl, *np.asarray(jax.random.key_data(key)).ravel().tolist()],
        "chunk": chunk,
        "outputs": {
            output.name: [list(output.dims), list(output.shape), str(output.dtype)]
            for output in program.outputs
        },
        "program": program.digest,
    }


def _record(identity: dict[str, Any]) -> dict[str, Any]:
    """Return the part of the identity that is stored with the result."""
    return {name: identity[name] for name in ("versions", "platform", "x64", "chunk", "key")}
