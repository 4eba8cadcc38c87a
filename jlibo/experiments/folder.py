"""An experiment's results on disk: one folder, written whole or not at all.

`summary.json` (numbers people quote), `curves.npz` (every seed's regret, selections and solver reports; plain
arrays, nothing pickled), `figure.png` and `figure.pdf`.
"""

import dataclasses
import io
import json
import os
import shutil
import tempfile
from pathlib import Path

import jax.numpy as jnp
import matplotlib
import numpy as np

from jlibo import plot
from jlibo.experiments.runner import ExperimentResult, summarise
from jlibo.lifelong import LifelongResult

FORMAT_VERSION = 1


def check_writable(folder: Path) -> None:
    """Fail before hours of work rather than after: can results be written below `folder`?"""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def write_result(result: ExperimentResult, folder: Path, *, extra_timing: dict[str, float]) -> Path:
    """Write the result to `folder`/NAME, replacing what is there in one step. Returns that path."""
    target = folder / result.experiment.name
    building = Path(tempfile.mkdtemp(prefix=f".{result.experiment.name}-", dir=folder))
    try:
        summary = {"format_version": FORMAT_VERSION, **summarise(result)}
        summary["timing"] = {**extra_timing, **summary["timing"]}
        (building / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        arrays = {"format_version": np.asarray(FORMAT_VERSION)}
        if result.true_support is not None:
            arrays["true_support"] = result.true_support
        for agent, run in result.results.items():
            for field in dataclasses.fields(run):
                value = getattr(run, field.name)
                if field.name not in ("carry", "actions") and value is not None:
                    arrays[f"{agent}/{field.name}"] = np.asarray(value)
        np.savez_compressed(building / "curves.npz", allow_pickle=False, **arrays)
        _draw(result, building)
        os.chmod(building, 0o755)
        _swap(building, target)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return target


def _draw(result: ExperimentResult, folder: Path) -> None:
    with matplotlib.rc_context({"figure.max_open_warning": 0}):
        if result.experiment.kind == "offline":
            regret = {name: jnp.asarray(run.regret.sum(-1)) for name, run in result.results.items()}
            sizes = {name: run.support.sum(-1) for name, run in result.results.items()}
            figure = plot.figure_offline(regret, sizes, title=result.experiment.name)
        else:
            runs = {name: run for name, run in result.results.items() if isinstance(run, LifelongResult)}
            if result.true_support is None:
                figure = plot.figure_tuning(runs, title=result.experiment.name)
            else:
                truth = jnp.asarray(result.true_support)
                figure = plot.figure_lifelong(runs, true_support=truth, title=result.experiment.name)
        for suffix in ("png", "pdf"):
            picture = io.BytesIO()
            figure.savefig(picture, format=suffix, dpi=150, bbox_inches="tight")
            (folder / f"figure.{suffix}").write_bytes(picture.getvalue())


def _swap(new: Path, target: Path) -> None:
    """Put `new` where `target` is; a folder cannot be replaced in one call, so the old one steps aside."""
    if target.exists():
        aside = target.with_name(f".{target.name}-old-{os.getpid()}")
        os.rename(target, aside)
        os.rename(new, target)
        shutil.rmtree(aside)
    else:
        os.rename(new, target)
