"""The report of the AutoML benchmark: Markdown tables, a figure for each table and one of the mean, JSON."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.automl import aims
from benchmarks.automl.study import Row, Study, mean_over, summarise

REGIME_TITLES = {
    "own": "own past, last half of the tasks",
    "random": "past of random trials, new tasks",
    "unrelated": "unrelated tasks, own past, last half of the tasks",
}
EXPLANATION = (
    "Regret is in thousandths of the task's range (best less worst value), after so many trials; mean ± "
    "standard error: over orders or draws, and over repeats for methods without memory, whose runs serve all "
    "orders. Random search is its exact expectation. Differences are to the same policy without a past, "
    "paired by order or draw. Ranks are of each task's mean regret. (n) after a method: it was run on the "
    "first n orders only."
)
COLOURS = {
    "random": "#8a8a8a",
    "gp-ucb": "#f9a620",
    "gp-ei": "#d33f49",
    "paper": "#4f7992",
    "adaptive": "#419d78",
    "portfolio": "#b58a5a",
    "portfolio-complete": "#5c4a32",
    "rgpe": "#1f4e9c",
    "empirical-gp": "#111111",
    "optuna-tpe": "#7d5ba6",
    "optuna-gp": "#c2649a",
    "botorch": "#2a9fbc",
}

FLOOR = 1e-4
"""Smallest regret in a figure, whose axes are logarithmic."""


def markdown_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table with columns as wide as needed."""
    cells = [list(header), *map(list, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _thousandths(mean: float, error: float) -> str:
    return f"{1e3 * mean:.1f}" + ("" if np.isnan(error) else f" ± {1e3 * error:.1f}")


def _label(name: str, row: Row) -> str:
    return name if row.num_groups is None else f"{name} ({row.num_groups})"


def _bold(cell: str, is_best: bool) -> str:
    return f"**{cell}**" if is_best else cell


def _regret_rows(rows: dict[str, Row]) -> list[list[str]]:
    """Return the cells of the regret of each method, the lowest at each mark in bold."""
    best = np.min([row.regret for row in rows.values()], axis=0)
    return [
        [_label(name, row)]
        + [
            _bold(_thousandths(mean, error), mean == least)
            for mean, error, least in zip(row.regret, row.error, best, strict=True)
        ]
        for name, row in rows.items()
    ]


def stacked_table(tables: dict[str, dict[str, Row]], marks: list[int]) -> str:
    """Return the regret of all tables as one Markdown table; short tables have empty cells at the end."""
    body = []
    for table, rows in tables.items():
        for number, cells in enumerate(_regret_rows(rows)):
            padding = [""] * (1 + len(marks) - len(cells))
            body.append([table if number == 0 else "", *cells, *padding])
    return markdown_table(["table", "method", *map(str, marks)], body)


def summary_tables(rows: dict[str, Row], marks: list[int]) -> str:
    """Return the Markdown tables of one study, or of the mean over several."""
    marks = marks[: len(next(iter(rows.values())).regret)]
    head = ["trials", *map(str, marks)]
    best_rank = np.min([row.rank for row in rows.values()], axis=0)
    regret = _regret_rows(rows)
    rank = [
        [_label(name, row)]
        + [_bold(f"{r:.2f}", r == least) for r, least in zip(row.rank, best_rank, strict=True)]
        for name, row in rows.items()
    ]
    paired = {name: row for name, row in rows.items() if row.baseline is not None}
    difference = [
        [f"{_label(name, row)} - {row.baseline}"]
        + [
            _thousandths(mean, error)
            for mean, error in zip(row.difference, row.difference_error, strict=True)
        ]
        for name, row in paired.items()
    ]
    won = [
        [f"{_label(name, row)} : {row.baseline}"]
        + [f"{w} : {n}" for w, n in zip(row.won, row.lost, strict=True)]
        for name, row in paired.items()
    ]
    parts = [("Normalised regret", regret)]
    if paired:
        parts += [("Difference to the same policy without a past", difference), ("Tasks won : lost", won)]
    parts.append(("Mean rank", rank))
    return "\n\n".join(f"{title}:\n\n{markdown_table(head, body)}" for title, body in parts)


def by_regime(studies: list[Study]) -> dict[str, list[Study]]:
    """Return the studies of each regime."""
    regimes = dict.fromkeys(study.regime.name for study in studies)
    return {name: [study for study in studies if study.regime.name == name] for name in regimes}


def write_markdown(
    studies: list[Study], seconds: dict[str, dict[str, float]], machine: dict[str, Any]
) -> str:
    """Return the whole report."""
    parts = ["# AutoML benchmark", EXPLANATION]
    for study in studies:
        parts += [f"## {study.title}", summary_tables(summarise(study), study.marks)]
    for name, group in by_regime(studies).items():
        if len(group) > 1:
            marks = min((study.marks for study in group), key=len)
            rows = {study.problem.name: summarise(study) for study in group}
            words = f"## Mean over {len(group)} tables: {REGIME_TITLES[name]}"
            parts += [words, summary_tables(mean_over(list(rows.values())), marks)]
            longest = max((study.marks for study in group), key=len)
            parts += [f"## All tables: {REGIME_TITLES[name]}", stacked_table(rows, longest)]
    verdicts = [aims.describe(aim) for study in studies for aim in aims.find_aims(study)]
    if verdicts:
        parts += ["## Aims", "\n".join(f"- {line}" for line in verdicts)]
    lines = [
        f"- {table}: {', '.join(f'{name} {taken:.1f}' for name, taken in times.items())}"
        for table, times in seconds.items()
    ]
    parts += ["## Seconds", "Of a run per task for methods in workers, else of all runs.", "\n".join(lines)]
    parts += ["## Machine", ", ".join(f"{key} {value}" for key, value in machine.items())]
    return "\n\n".join(parts) + "\n"


def _number(value: float) -> float | None:
    return None if np.isnan(value) else value  # JSON has no NaN


def as_json(studies: list[Study]) -> dict[str, Any]:
    """Return all numbers as plain JSON values."""

    def plain(rows: dict[str, Row], marks: list[int]) -> dict[str, Any]:
        fields = ("regret", "error", "rank", "difference", "difference_error", "won", "lost")
        answer = {}
        for name, row in rows.items():
            numbers = {field: getattr(row, field) for field in fields}
            answer[name] = dict(baseline=row.baseline, num_groups=row.num_groups) | {
                field: dict(zip(map(str, marks), map(_number, array.tolist()), strict=False))
                for field, array in numbers.items()
                if array is not None
            }
        return answer

    means = {
        name: plain(mean_over([summarise(study) for study in group]), group[0].marks)
        for name, group in by_regime(studies).items()
    }
    return dict(
        studies=[
            dict(
                table=study.problem.name,
                digest=study.problem.digest(),
                regime=study.regime.name,
                groups=study.regime.num_groups,
                tasks=study.problem.num_tasks,
                configs=study.problem.num_configs,
                parameters=study.problem.space.spec()["parameters"],
                notes=list(study.problem.notes),
                budget=study.budget,
                methods=plain(summarise(study), study.marks),
            )
            for study in studies
        ],
        mean=means,
        aims=[aim for study in studies for aim in aims.find_aims(study)],
    )


def plot(panels: dict[str, list[Study]], path: Path) -> None:
    """Plot normalised regret against trials, one panel per title; several studies are averaged."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(panels), 4.4), layout="constrained")
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, studies) in zip(all_axes, panels.items(), strict=True):
        budget = min(study.budget for study in studies)
        trials = np.arange(1, budget + 1)
        for name in studies[0].names:
            if not all(name in study.regret for study in studies):
                continue
            curves = [study.curve(name) for study in studies]
            mean = np.mean([curve[0][:budget] for curve in curves], axis=0)
            error = np.sqrt(np.sum([curve[1][:budget] ** 2 for curve in curves], axis=0)) / len(curves)
            error = np.nan_to_num(error)  # NaN if there is a single order or draw
            mean, low = np.maximum(mean, FLOOR), np.maximum(mean - error, FLOOR)
            width = 2.4 if name == aims.OURS else 1.4
            axes.plot(trials, mean, label=name, color=COLOURS[name], linewidth=width)
            axes.fill_between(trials, low, mean + error, color=COLOURS[name], alpha=0.15, linewidth=0)
        marks = min((study.marks for study in studies), key=len)
        axes.set(xscale="log", yscale="log", title=title, xlabel="trials of the task")
        axes.set_xticks(marks, [str(mark) for mark in marks])
        axes.minorticks_off()
        axes.grid(alpha=0.3, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
    all_axes[0].set_ylabel("simple regret / range of the task")
    all_axes[0].legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def plot_all(studies: list[Study], folder: Path) -> list[Path]:
    """Write a figure for each table, with a panel for each regime, and one of the mean over tables."""
    paths = []
    names = list(dict.fromkeys(study.problem.name for study in studies))
    for name in names:
        panels = {
            REGIME_TITLES[study.regime.name]: [study] for study in studies if study.problem.name == name
        }
        paths.append(folder / f"{name}.png")
        plot(panels, paths[-1])
    if len(names) > 1:
        paths.append(folder / "mean.png")
        plot({REGIME_TITLES[name]: group for name, group in by_regime(studies).items()}, paths[-1])
    return paths
