"""The folder of an arena: its numbers, tables and figures, written atomically.

| file                      | what it is                                                               |
|---------------------------|--------------------------------------------------------------------------|
| `summary.json`            | all numbers, the cards of the methods, and the claims about them         |
| `regret.npz`              | regret by task and by step, a `jlibo.Labelled`                           |
| `tables.md`               | tables of regret and cards, of claims, of environments and of methods    |
| `figure.png`, `.pdf`      | heat map of regret relative to the oracle                                |
| `tasks.png`, `.pdf`       | regret of each task, a panel for each environment                        |
| `growth.png`, `.pdf`      | excess against the number of features, if environments differ in it      |
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jlibo import plot
from jlibo.arena.result import ArenaResult
from jlibo.arena.tables import all_tables
from jlibo.experiments.folder import drawn_or_warned, finite_or_null, pictures, write_or_rescue
from jlibo.experiments.run_folder import Manifest

FORMAT_VERSION = 1
WRITTEN_BY = "jlibo arena"


def write_arena(result: ArenaResult, target: Path, *, timing: Mapping[str, float]) -> Manifest | None:
    """Write the result to the folder `target`, and atomically replace an earlier arena there.

    Returns the manifest of the arena that was replaced.

    **Raises:** `jlibo.experiments.folder.NotWritten` if that fails.
    """
    return write_or_rescue(target, render(result, timing), result.about(), WRITTEN_BY)


def render(result: ArenaResult, timing: Mapping[str, float]) -> dict[str, bytes]:
    """Return the content of the files by name, the most important first."""
    summary = {"format_version": FORMAT_VERSION, **result.summary(), "timing": dict(timing)}
    text = json.dumps(finite_or_null(summary), indent=2, allow_nan=False) + "\n"
    tables = all_tables(result)
    with tempfile.TemporaryDirectory() as folder:
        saved = result.labelled().save(Path(folder) / "regret.npz").read_bytes()
    files = {"summary.json": text.encode(), "regret.npz": saved, "tables.md": tables.encode()}
    return files | drawn_or_warned(lambda: _draw(result))


def _draw(result: ArenaResult) -> dict[str, bytes]:
    methods = [method.name for method in result.methods]
    environments = [one.name for one in result.environments]
    size = (2.2 + 0.75 * len(environments), 1.8 + 0.3 * len(methods))
    figure = plot.NotebookFigure(figsize=size, layout="constrained")
    words = [[result.in_words(method, one) for one in environments] for method in methods]
    plot.plot_ratios(result.ratios(), methods, environments, figure.subplots(), words=words)
    figure.suptitle(f"regret per task relative to the oracle, {result.num_seeds} seeds")
    files = pictures(figure, "figure")
    regret: dict[str, dict[str, np.ndarray]] = {}
    for one in environments:
        played = {method: result.task_regret(method, one) for method in methods}
        regret[one] = {method: values for method, values in played.items() if values is not None}
    files |= pictures(plot.figure_task_curves(regret), "tasks")
    growth = result.growth()
    if growth:
        figure = plot.NotebookFigure(figsize=(6, 4.5), layout="constrained")
        excess = {
            name: {size: (score.excess.mean, score.excess.error) for size, score in scores.items()}
            for name, scores in growth.items()
            if scores and name not in {score.oracle for score in scores.values()}
        }
        plot.plot_growth(excess, figure.subplots())
        files |= pictures(figure, "growth")
    return files
