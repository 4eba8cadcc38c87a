"""An experiment's results on disk: one folder for each run, written whole or not at all.

`summary.json` (the numbers), `curves.npz` (every seed's regret, selections and solver reports; plain arrays,
nothing pickled), `figure.png`, `figure.pdf`, and a `manifest.json` that says which files are ours (see
`run_folder`).

A run is named by its experiment and the settings that differ from the registered ones, `run_name`. Seeds and
precision are not part of the name: a run of more seeds replaces one of fewer, and the caller is told.
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import matplotlib
import numpy as np

from jlibo import metrics, plot
from jlibo.experiments.run_folder import RunFolderError, write_run
from jlibo.experiments.runner import ExperimentResult, summarise
from jlibo.experiments.settings import Experiment, changed_settings
from jlibo.lifelong import LifelongResult

FORMAT_VERSION = 1
MAX_NAME = 120
"""Longest name of a folder, in characters; file systems take 255 bytes."""
TITLE_WIDTH = 100


class RunWarning(UserWarning):
    """Something about a run that the user should know."""


class Written(NamedTuple):
    """Where a run is, and if it replaced one of other seeds or precision, that one in words."""

    path: Path
    replaced: str | None


class NotWritten(Exception):
    """A result that could not be written where it should be.

    `error` is the reason. `kept` is a folder with as many of the files as could be written there, if any.
    """

    def __init__(self, error: Exception, kept: Path | None):
        super().__init__(str(error))
        self.error, self.kept = error, kept


def run_name(experiment: Experiment) -> str:
    """The name of the run's folder: `lifelong-cosine`, or with other settings `lifelong-cosine,lam=0.3`.

    Settings stand in the order of `Experiment`, so that one run has one name. A name longer than `MAX_NAME`
    ends with a digest instead of the last settings.
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
    """The run in words, with all settings that differ from the registered ones; for figures and tables."""
    return textwrap.fill(", ".join([experiment.name, *_changes(experiment)]), TITLE_WIDTH)


def _changes(experiment: Experiment) -> list[str]:
    return [f"{name}={value}" for name, value in changed_settings(experiment).items()]


def check_writable(folder: Path) -> None:
    """Raise `OSError` if results cannot be written below `folder`: before hours of work rather than after."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def write_result(result: ExperimentResult, folder: Path, *, extra_timing: dict[str, float]) -> Written:
    """Write the result to `folder`/`run_name`, and replace an earlier run there in one step.

    **Raises:** `NotWritten` if that fails; what can be written elsewhere is kept there.
    """
    target = folder / run_name(result.experiment)
    files = render(result, extra_timing)
    about = {
        "experiment": result.experiment.name,
        "seeds": result.num_seeds,
        "first_seed": result.first_seed,
        "precision": _precision(result),
    }
    try:
        old = write_run(target, files, about)
    except (OSError, RunFolderError) as error:
        raise NotWritten(error, _rescue(target.name, files)) from error
    if old is None or old.about == about:
        return Written(target, None)
    about = {name: old.about.get(name, "unknown") for name in about}
    words = "{seeds} seeds from {first_seed}, {precision}".format_map(about)
    return Written(target, words)


def _rescue(name: str, files: Mapping[str, bytes]) -> Path | None:
    """Write as many of the files as possible, the first ones first, to a new folder for temporary files."""
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
    """The files of a run by name, those that matter most first."""
    summary = {"format_version": FORMAT_VERSION, "precision": _precision(result), **summarise(result)}
    summary["timing"] = {**extra_timing, **summary["timing"]}
    text = json.dumps(_finite_or_null(summary), indent=2, allow_nan=False) + "\n"
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
    try:
        files |= _draw(result)
    except Exception as error:
        # The numbers took longer to compute than a figure takes to draw from them later.
        warnings.warn(
            f"no figure could be drawn ({type(error).__name__}: {error}).", RunWarning, stacklevel=2
        )
    return files


def _precision(result: ExperimentResult) -> str:
    return str(next(iter(result.results.values())).regret.dtype)


def _finite_or_null(value: Any) -> Any:
    """JSON has no NaN and no infinity; `null` stands for them."""
    if isinstance(value, dict):
        return {name: _finite_or_null(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite_or_null(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _draw(result: ExperimentResult) -> dict[str, bytes]:
    title = run_title(result.experiment)
    files = {}
    with matplotlib.rc_context({"figure.max_open_warning": 0}):
        if result.experiment.kind == "offline":
            regret = {name: metrics.task_regret(run) for name, run in result.results.items()}
            sizes = {name: metrics.support_size(run) for name, run in result.results.items()}
            figure = plot.figure_offline(regret, sizes, title=title)
        else:
            runs = {name: run for name, run in result.results.items() if isinstance(run, LifelongResult)}
            if result.true_support is None:
                figure = plot.figure_tuning(runs, title=title)
            else:
                truth = jnp.asarray(result.true_support)
                figure = plot.figure_lifelong(runs, true_support=truth, title=title)
        for suffix in ("png", "pdf"):
            picture = io.BytesIO()
            figure.savefig(picture, format=suffix, dpi=150, bbox_inches="tight")
            files[f"figure.{suffix}"] = picture.getvalue()
    return files
