"""The command line of sweeps: `jlibo sweep CONFIG.toml`.

Errors that the user can fix are raised as one of `SWEEP_ERRORS`. `jlibo.cli.failures` prints these and all
other errors as one line. The config is checked before any work that takes time.
"""

import argparse
import contextlib
import csv
import io
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jlibo import files
from jlibo.cli.failures import FAULT, plus_minus, say
from jlibo.experiments.config import ConfigError, SweepConfig, read_config
from jlibo.experiments.protocols import Offline
from jlibo.experiments.registry import load_experiments
from jlibo.experiments.run import ExperimentRun
from jlibo.experiments.spec import SettingError
from jlibo.lifelong import metrics
from jlibo.printable import described, printable
from jlibo.startup import INTERRUPTED
from jlibo.sweeps import BudgetError, Labelled, SweepFolderError
from jlibo.sweeps.dask_engine import ClusterError, WorkerError
from jlibo.sweeps.folder import storage_errors

SWEEP_ERRORS = (ConfigError, SettingError, SweepFolderError, BudgetError)
"""Errors that the user can fix; `jlibo.cli` prints them as one line, with the exit code of usage errors."""
RUN_ERRORS = (WorkerError, ClusterError)
"""Errors of a cluster; printed as one line, with the exit code of other failures."""
MAX_DEVICES = 256
_ANY_MEMORY = 2**63


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `sweep` to the commands of `jlibo`."""
    parser = commands.add_parser(
        "sweep", help="run an experiment over seeds and settings; can be resumed after a crash"
    )
    parser.add_argument("config", metavar="CONFIG.toml", help="what to run; docs/sweeps.md shows one")
    parser.add_argument(
        "--out", metavar="DIR", help="folder for finished chunks and the result; run again to resume"
    )
    parser.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="run on the Dask scheduler at ADDRESS; `local` starts one on this machine",
    )
    parser.add_argument("--workers", metavar="N", help="workers of `--dask local` (default: one per core)")
    parser.add_argument("--devices", metavar="N", help="number of devices; on a CPU, virtual devices")
    parser.add_argument(
        "--distributed",
        action="store_true",
        help="run as one of several processes (jax.distributed) that, for example, Slurm started",
    )
    parser.add_argument(
        "--experiments",
        metavar="FILE.py",
        help="run this Python file first, which registers experiments of your own",
    )
    parser.add_argument("--x64", action="store_true", help="compute in double precision")
    parser.add_argument(
        "--no-cache", action="store_true", help="do not keep compiled programs in the user's cache folder"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    num_devices, num_workers = _check_options(options)
    if options.experiments is not None:
        load_experiments(options.experiments)
    # Workers elsewhere can have more memory than this machine.
    config = read_config(options.config, memory=None if options.dask in (None, "local") else _ANY_MEMORY)

    # jax is configured only after the command has been checked.
    import jax

    _set_up(jax, options, num_devices)
    from jlibo.sweeps import progress, sweep

    run_fn = ExperimentRun(config.experiment, config.outputs)
    try:
        with (
            _client(options.dask, num_workers) as client,
            progress.bar(config.experiment.name) as report_fn,
        ):
            result = sweep(
                run_fn,
                config.grid,
                num_seeds=config.num_seeds,
                first_seed=config.first_seed,
                chunk=config.chunk,
                memory_budget=config.memory_budget,
                devices=num_devices,
                num_threads=_num_threads(jax, options),
                dims=run_fn.dims,
                coords=run_fn.coords,
                out=options.out,
                client=client,
                progress=report_fn if sys.stderr.isatty() else False,
                attrs=config.record(),
                program_name=_program_name(run_fn),
                key=jax.random.key(0),
            )
    except BaseException as error:
        if _was_interrupted(error):
            say(f"stopped.{_how_to_resume(options.out)}")
            return INTERRUPTED
        if isinstance(error, RUN_ERRORS):
            say(str(error))
            return FAULT
        raise
    if jax.process_index() == 0:
        rows = summary_rows(config, result)
        if options.out is not None:
            folder = Path(options.out)
            with storage_errors(f"write '{printable(folder / 'summary.csv')}'", folder):
                write_summary(rows, folder / "summary.csv")
        _print_table(config, rows, options.out)
    return 0


def _num_threads(jax: Any, options: argparse.Namespace) -> int:
    """Return the number of chunks at a time: with a single CPU device, as many as there are cores."""
    from jlibo.sweeps.engines import usual_threads

    alone = options.dask is None and len(jax.local_devices()) == 1
    return usual_threads() if alone else 1


def _program_name(run_fn: ExperimentRun) -> str | None:
    """Return the name under which the traced program is stored. Unlike in `reproduce`, data are constants."""
    name = run_fn.experiment.program_name()
    return None if name is None else f"sweep {name} {run_fn.experiment.data()} {run_fn.outputs}"


def _was_interrupted(error: BaseException | None) -> bool:
    """Return whether Ctrl-C caused `error`: within a library it can surface as another exception."""
    seen = 0
    while error is not None and seen < 100 and not isinstance(error, KeyboardInterrupt):
        error, seen = error.__cause__ or error.__context__, seen + 1
    return isinstance(error, KeyboardInterrupt)


def _how_to_resume(out: str | None) -> str:
    if out is None:
        return ""
    return f" Finished chunks are in '{printable(out)}'; the same command resumes from there."


def _check_options(options: argparse.Namespace) -> tuple[int | None, int]:
    num_devices = None if options.devices is None else _whole_number("--devices", options.devices)
    num_workers = _whole_number("--workers", options.workers or str(os.cpu_count() or 1))
    if options.workers is not None and options.dask != "local":
        raise ConfigError("--workers goes with --dask local: other clusters have their own workers.")
    for flag, value in (("--devices", options.devices), ("--distributed", options.distributed or None)):
        if options.dask is not None and value is not None:
            raise ConfigError(f"{flag} and --dask exclude each other: on Dask every worker has one device.")
    if num_devices is not None and num_devices > MAX_DEVICES:
        raise ConfigError(
            f"--devices should be at most {MAX_DEVICES}: each has threads and memory of its own, and more "
            f"than there are cores gain nothing, but got {described(num_devices)}."
        )
    if options.dask == "local":
        try:
            from jlibo.sweeps.dask_cluster import check_num_workers

            check_num_workers("--workers", num_workers)
        except (ImportError, ValueError) as error:
            raise ConfigError(str(error).replace("`", "")) from None
    return num_devices, num_workers


def _whole_number(name: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:  # also for more than 4,300 digits
        number = 0
    if number < 1:
        raise ConfigError(
            f"{name} should be a whole number of at least 1, but got '{printable(text, max_length=60)}'."
        )
    return number


def _set_up(jax: Any, options: argparse.Namespace, num_devices: int | None) -> None:
    """Configure jax before it initialises its devices."""
    # XLA needs more threads than devices, or programs can deadlock (jax 0.10 on a CPU).
    os.environ.setdefault("NPROC", str(max(4, os.cpu_count() or 1, (num_devices or 1) + 2)))
    if num_devices is not None:
        with contextlib.suppress(RuntimeError):  # jax is already initialised: use its devices
            jax.config.update("jax_num_cpu_devices", num_devices)
    if options.x64:
        jax.config.update("jax_enable_x64", True)
    if not options.no_cache:
        from jlibo.programs.traced import keep_programs

        keep_programs()
    if options.distributed:
        _join_processes(jax)
    if num_devices is not None and num_devices > len(jax.local_devices()):
        raise ConfigError(
            f"--devices should be at most {len(jax.local_devices())} here, but got {num_devices}."
        )


def _join_processes(jax: Any) -> None:
    """Join the processes of `jax.distributed`. jax finds the others under Slurm, MPI and on TPUs."""
    try:
        jax.distributed.initialize()
    except ValueError as error:
        raise ConfigError(
            "--distributed should be one of several processes that Slurm or MPI started, such as `srun jlibo "
            f"sweep ... --distributed`, but there is no sign of them ({printable(error, max_length=120)})."
        ) from None
    except RuntimeError as error:
        raise ConfigError(
            f"--distributed: the other processes cannot be reached ({printable(error, max_length=120)})."
        ) from None


@contextlib.contextmanager
def _client(address: str | None, num_workers: int) -> Iterator[Any]:
    if address is None:
        yield None
        return
    try:
        from jlibo.sweeps import dask_cluster
    except ImportError as error:
        raise ConfigError(str(error)) from None
    is_local = address == "local"
    opened = dask_cluster.local_client(num_workers) if is_local else dask_cluster.connect(address)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_without_log())
        try:
            client = stack.enter_context(opened)
        except dask_cluster.CredentialsError as error:
            raise ConfigError(f"--dask local: {error}") from None
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            # RuntimeError and TypeError: distributed has no TLS key for a scheduler that requires one.
            raise ConfigError(
                f"--dask: there is no scheduler at '{printable(address)}' ({printable(error)})."
            ) from None
        yield client


@contextlib.contextmanager
def _without_log() -> Iterator[None]:
    """Suppress the log of Dask. Errors that matter are also raised."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


# --- the summary --------------------------------------------------------------------------------------------


def summary_rows(config: SweepConfig, result: Labelled) -> list[dict[str, Any]]:
    """Return a row per point and agent: settings, mean and standard error over seeds."""
    offline = isinstance(config.experiment.make_protocol(), Offline)
    regret = result["task_regret"].astype(np.float64)
    # Lifelong experiments report the regret of all tasks, offline ones the regret after the last task.
    total = regret[..., -1] if offline else regret.sum(-1)
    axis = result.dims("task_regret").index("seed")
    points = total.shape[:axis]
    mean, error = metrics.mean_and_standard_error(total, axis=axis)
    size = result["support_size"][..., -1].mean(axis)
    found = result["recovery"][..., -1].mean(axis) if "recovery" in result else None
    rows = []
    for place in np.ndindex(*points):
        settings = {}
        for name, (dims, values) in result.coords.items():
            if dims[0] in result.dims("task_regret")[:axis]:
                settings[name] = float(values[place[result.dims("task_regret").index(dims[0])]])
        for number, agent in enumerate(config.experiment.agents):
            where = (*place, number)
            row = {**settings, "agent": agent, "regret": float(mean[where]), "se": float(error[where])}
            row["kernels"] = float(size[where])
            if found is not None:
                row["recovery"] = float(found[where])
            rows.append(row)
    return rows


def write_summary(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the rows as CSV, atomically."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    files.write_atomically(path, lambda file: file.write(text.getvalue().encode()))


def _print_table(config: SweepConfig, rows: list[dict[str, Any]], out: str | None) -> None:
    from rich.console import Console
    from rich.table import Table

    offline = isinstance(config.experiment.make_protocol(), Offline)
    table = Table(
        title=f"{config.experiment.name}, {config.num_seeds} seeds from {config.first_seed}",
        title_justify="left",
    )
    settings = list(rows[0])[: list(rows[0]).index("agent")]
    for name in settings:
        table.add_column(name, justify="right")
    table.add_column("agent")
    table.add_column("regret after the last task" if offline else "lifelong regret", justify="right")
    table.add_column("kernels at the end", justify="right")
    if "recovery" in rows[0]:
        table.add_column("exact recovery", justify="right")
    for row in rows:
        cells = [f"{row[name]:g}" for name in settings]
        cells += [
            row["agent"],
            f"{row['regret']:,.2f} {plus_minus()} {row['se']:,.2f}",
            f"{row['kernels']:.1f}",
        ]
        if "recovery" in row:
            cells.append(f"{row['recovery']:.0%}")
        table.add_row(*cells)
    console = Console()
    console.print(table)
    if out is not None:
        console.print(
            f"result.npz, summary.csv and the chunks are in {printable(out)}/",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
