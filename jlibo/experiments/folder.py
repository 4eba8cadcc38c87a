"""Results of an experiment on disk: one folder per run, written atomically.

A folder holds `summary.json` (the numbers), `curves.npz` (regret, selections and solver reports of every
seed; plain arrays, nothing pickled), `figure.png`, `figure.pdf`, and a `manifest.json` that lists the files
that jlibo wrote (see `run_folder`).

The name of a run consists of its experiment and the settings that differ from the registered ones, see
`run_name`. Seeds and precision are not part of the name: a run with more seeds replaces one with fewer, and
`write_result` reports it.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import math
import os
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

import jax.numpy as jnp
import matplotlib
import numpy as np
from matplotlib.figure import Figure

from jlibo import plot
from jlibo.experiments.experiment import Experiment
from jlibo.experiments.registry import changed_settings
from jlibo.experiments.run_folder import WRITTEN_BY, Manifest, RunFolderError, write_run
from jlibo.experiments.runner import ExperimentResult
from jlibo.experiments.summary import summarise
from jlibo.lifelong import metrics
from jlibo.lifelong.play import LifelongResult

FORMAT_VERSION = 1
MAX_NAME = 120
"""Maximum length of a folder name in characters; file systems allow 255 bytes."""
TITLE_WIDTH = 100


class RunWarning(UserWarning):
    """A problem with a run that the user should know about, such as a figure that could not be drawn."""


@final
class Written(NamedTuple):
    """The folder of a run, and a description of the run with other seeds or precision that it replaced."""

    path: Path
    replaced: str | None


class NotWritten(Exception):
    """A result could not be written to its folder.

    `error` is the reason. `kept` is a temporary folder with the files that could be written there, or None.
    """

    def __init__(self, error: Exception, kept: Path | None):
        super().__init__(str(error))
        self.error, self.kept = error, kept


def run_name(experiment: Experiment) -> str:
    """Return the name of the run's folder, such as `lifelong-cosine` or `lifelong-cosine,lam=0.3`.

    Settings are in the order of `Experiment`, so a run has exactly one name. If it is longer than `MAX_NAME`,
    a digest replaces the last settings.
    """
    parts = [experiment.name, *_changes(experiment)]
    name = ",".join(parts)
    if len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    while len(",".join([*parts, digest])) > MAX_NAME and len(parts) > 1:
        parts.pop()
    return ",".join([*parts, digest])


def run_title(experiment: Experiment) -> str:
    """Return the title of figures and tables: the experiment and all settings that differ from its own."""
    return textwrap.fill(", ".join([experiment.name, *_changes(experiment)]), TITLE_WIDTH)


def _changes(experiment: Experiment) -> list[str]:
    return [f"{name}={value}" for name, value in changed_settings(experiment).items()]


def check_writable(folder: Path) -> None:
    """Raise an `OSError` if results cannot be written below `folder`. Called before a run, which is long."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def write_result(result: ExperimentResult, folder: Path, *, extra_timing: dict[str, float]) -> Written:
    """Write the result to the subfolder `run_name` of `folder`, and atomically replace an earlier run there.

    **Raises:** `NotWritten` if that fails. Files that can be written to a temporary folder are kept there.
    """
    target = folder / run_name(result.experiment)
    files = render(result, extra_timing)
    about = {
        "experiment": result.experiment.name,
        "seeds": result.num_seeds,
        "first_seed": result.first_seed,
        "precision": _precision(result),
    }
    old = write_or_rescue(target, files, about)
    if old is None or old.about == about:
        return Written(target, None)
    about = {name: old.about.get(name, "unknown") for name in about}
    words = "{seeds} seeds from {first_seed}, {precision}".format_map(about)
    return Written(target, words)


def write_or_rescue(
    target: Path, files: Mapping[str, bytes], about: Mapping[str, Any], written_by: str = WRITTEN_BY
) -> Manifest | None:
    """Write a run's files as `write_run` does; if that fails, to a temporary folder.

    **Raises:** `NotWritten` if it fails.
    """
    try:
        return write_run(target, files, about, written_by)
    except (OSError, RunFolderError) as error:
        raise NotWritten(error, _rescue(target.name, files)) from error


def _rescue(name: str, files: Mapping[str, bytes]) -> Path | None:
    """Write as many files as possible, in order, to a new temporary folder. Returns None if none could be."""
    kept = None
    with contextlib.suppress(OSError):
        folder = Path(tempfile.mkdtemp(prefix=f"jlibo-{name}-"))
        for file, data in files.items():
            try:
                (folder / file).write_bytes(data)
                kept = folder
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(folder / file)
        if kept is None:
            folder.rmdir()
    return kept


def render(result: ExperimentResult, extra_timing: Mapping[str, float]) -> dict[str, bytes]:
    """Return the content of a run's files by name, the most important first."""
    summary = {"format_version": FORMAT_VERSION, "precision": _precision(result), **summarise(result)}
    summary["timing"] = {**extra_timing, **summary["timing"]}
    text = json.dumps(finite_or_null(summary), indent=2, allow_nan=False) + "\n"
    files = {"summary.json": text.encode()}
    arrays = {"format_version": np.asarray(FORMAT_VERSION)}
    if result.true_support is not None:
        arrays["true_support"] = result.true_support
    for agent, run in result.results.items():
        for field in dataclasses.fields(run):
            value = getattr(run, field.name)
            if field.name not in ("carry", "actions") and value is not None:
                arrays[f"{agent}/{field.name}"] = np.asarray(value)
    curves = io.BytesIO()
    np.savez_compressed(curves, allow_pickle=False, **arrays)
    files["curves.npz"] = curves.getvalue()
    return files | drawn_or_warned(lambda: _draw(result, summary))


def drawn_or_warned(draw_fn: Callable[[], dict[str, bytes]]) -> dict[str, bytes]:
    """Return the files of figures; none, with a `RunWarning`, if they cannot be drawn."""
    try:
        with matplotlib.rc_context({"figure.max_open_warning": 0}):
            return draw_fn()
    except Exception as error:
        # The numbers are expensive and a figure can be drawn from them later, so they are still written.
        warnings.warn(
            f"no figure could be drawn ({type(error).__name__}: {error}).", RunWarning, stacklevel=3
        )
        return {}


def pictures(figure: Figure, name: str) -> dict[str, bytes]:
    """Return a figure as the files `name.png` and `name.pdf`."""
    files = {}
    for suffix in ("png", "pdf"):
        picture = io.BytesIO()
        figure.savefig(picture, format=suffix, dpi=150, bbox_inches="tight")
        files[f"{name}.{suffix}"] = picture.getvalue()
    return files


def _precision(result: ExperimentResult) -> str:
    return str(next(iter(result.results.values())).regret.dtype)


def finite_or_null(value: Any) -> Any:
    """Replace NaN and infinity, which JSON lacks, by None."""
    if isinstance(value, dict):
        return {name: finite_or_null(item) for name, item in value.items()}
    if isinstance(value, list):
        return [finite_or_null(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _draw(result: ExperimentResult, summary: Mapping[str, Any]) -> dict[str, bytes]:
    title = run_title(result.experiment)
    runs = {name: run for name, run in result.results.items() if isinstance(run, LifelongResult)}
    if result.experiment.analysis is not None:
        figure = result.experiment.analysis.draw(summary["analysis"], title)
    elif not runs:
        regret = {name: metrics.task_regret(run) for name, run in result.results.items()}
        sizes = {name: metrics.support_size(run) for name, run in result.results.items()}
        figure = plot.figure_offline(regret, sizes, title=title)
    elif result.true_support is None:
        figure = plot.figure_tuning(runs, title=title)
    else:
        truth = jnp.asarray(result.true_support)
        figure = plot.figure_lifelong(runs, true_support=truth, title=title)
    return pictures(figure, "figure")
