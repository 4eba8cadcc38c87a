"""Report of the AutoML benchmark: means and standard errors, tables, a plot, and whether each aim is met.

Regret is averaged over the tasks of a block (such as the last half of each order). A method with a run for
each order has one number per order, and its standard error is over orders. The runs of a peer do not depend
on the order: the same few repeats of each task are used for all orders, and the standard error is over
repeats. Two methods are compared by their differences in each order, which removes the variation in
difficulty between orders.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.automl_table import Problem, blocks
from jlibo.lifelong.metrics import mean_and_standard_error

MARKS = (1, 3, 5, 10, 20, 30, 50)
LEVELS = (0.1, 0.05, 0.02, 0.01)
LAST_HALF = "last half of the tasks"
OURS = "adaptive"
EARLY = range(1, 11)
LATE = (20, 30, 50)
ALLOWED = 1.1
COLOURS = {
    "random": "#8a8a8a",
    "gp-ucb": "#f9a620",
    "gp-ei": "#d33f49",
    "paper": "#4f7992",
    "adaptive": "#419d78",
    "optuna-tpe": "#7d5ba6",
    "optuna-gp": "#c2649a",
    "botorch": "#2a9fbc",
}


@dataclasses.dataclass(eq=False)
class Study:
    """Simple regret of all methods, raw and normalised, as [order, place, repeat, step]."""

    problem: Problem
    orders: np.ndarray
    raw: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    normalised: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def add_orders(self, name: str, runs: np.ndarray) -> None:
        """Add a method with separate runs for each order, [order, place, step]."""
        by_task = np.empty((self.problem.num_tasks, len(self.orders), runs.shape[-1]), int)
        numbers = np.arange(len(self.orders))[:, None]
        by_task[self.orders, numbers] = runs
        self._add(name, self.problem.regret(by_task, normalised=False)[self.orders, numbers][:, :, None])

    def add_repeats(self, name: str, runs: np.ndarray) -> None:
        """Add a method whose runs do not depend on the order, [task, repeat, step]."""
        self._add(name, self.problem.regret(runs, normalised=False)[self.orders])

    def add_expected(self, name: str, regret: np.ndarray) -> None:
        """Add a method whose expected raw regret is known exactly, [task, step]."""
        self._add(name, regret[self.orders][:, :, None])

    def _add(self, name: str, raw: np.ndarray) -> None:
        self.raw[name] = raw
        self.normalised[name] = raw / self.problem.spread(1)[self.orders][:, :, None, None]

    @property
    def names(self) -> list[str]:
        return list(self.raw)

    @property
    def budget(self) -> int:
        return next(iter(self.raw.values())).shape[-1]

    @property
    def marks(self) -> list[int]:
        return [mark for mark in MARKS if mark <= self.budget]

    def samples(self, name: str, block: str, *, raw: bool = False) -> np.ndarray:
        """Return means over the tasks of a block, [order, repeat, step]."""
        regret = (self.raw if raw else self.normalised)[name]
        return regret[:, blocks(self.problem.num_tasks)[block]].mean(1)

    def curve(self, name: str, block: str, *, raw: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard error after each trial."""
        samples = self.samples(name, block, raw=raw)
        return mean_and_standard_error(samples.mean(0) if samples.shape[1] > 1 else samples.mean(1))

    def difference(self, name: str, other: str, block: str) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard error of the difference in normalised regret, paired by order.

        The standard error is over orders, or over repeats for a method with repeats.
        """
        left, right = self.samples(name, block), self.samples(other, block)
        mean, error = mean_and_standard_error(left.mean(1) - right.mean(1))
        repeated = [side.mean(0) for side in (left, right) if side.shape[1] > 1]
        over_repeats = [mean_and_standard_error(means)[1] for means in repeated]
        return mean, np.sqrt(error**2 + sum(part**2 for part in over_repeats))

    def trials_needed(self, name: str, block: str) -> dict[str, int | None]:
        """Return the number of trials until the mean normalised regret is below each level; None if never."""
        mean, _ = self.curve(name, block)
        reached = {level: np.flatnonzero(mean <= level) for level in LEVELS}
        return {str(level): int(steps[0]) + 1 if steps.size else None for level, steps in reached.items()}


# --------------------------------------------------------------------------------------------------- the aims


def find_aims(study: Study, control: Study | None) -> list[dict[str, Any]]:
    """Return each aim, whether it is met, and the numbers behind it."""
    aims = []
    others = [name for name in study.names if name != OURS]
    if OURS in study.names:
        means = {name: study.curve(name, LAST_HALF)[0] for name in study.names}
        early = [trial for trial in EARLY if trial <= study.budget]
        lost = []
        for trial in early:
            rival = min(others, key=lambda name: means[name][trial - 1])
            if means[OURS][trial - 1] >= means[rival][trial - 1]:
                lost.append(f"{trial} ({rival})")
        aims.append(
            dict(
                aim=f"{OURS} beats every other at 1 to {early[-1]} trials, {LAST_HALF}",
                met=not lost,
                words="at each of them" if not lost else f"behind at {', '.join(lost)}",
                numbers=_beside_best(study, others, means, [mark for mark in study.marks if mark <= 10]),
            )
        )
        late = [mark for mark in LATE if mark <= study.budget]
        numbers = _beside_best(study, others, means, late)
        worse = [f"{mark} ({n['best_other']})" for mark, n in numbers.items() if n["difference"] > n["error"]]
        aims.append(
            dict(
                aim=f"{OURS} is not worse than any other (within one standard error) at "
                f"{', '.join(map(str, late))} trials, {LAST_HALF}",
                met=not worse,
                words="at each of them" if not worse else f"worse at {', '.join(worse)}",
                numbers=numbers,
            )
        )
    if control is not None:
        mine, its = (control.curve(name, LAST_HALF)[0] for name in (OURS, "gp-ei"))
        marks = [mark - 1 for mark in control.marks]
        ratios = dict(zip(control.marks, (mine[marks] / its[marks]).tolist(), strict=True))
        over = [str(mark) for mark, ratio in ratios.items() if ratio > ALLOWED]
        mean_ratio = float(mine.mean() / its.mean())
        aims.append(
            dict(
                aim=f"on unrelated tasks {OURS} is within 10 % of gp-ei, {LAST_HALF}",
                met=not over,
                words=("at each mark" if not over else f"above at {', '.join(over)}")
                + f"; {mean_ratio:.2f} in the mean over trials",
                numbers={**ratios, "mean over trials": mean_ratio},
            )
        )
    return aims


def _beside_best(study: Study, others: list[str], means: dict[str, np.ndarray], marks) -> dict[int, dict]:
    """Compare the regret at each mark with that of the best other method."""
    numbers = {}
    for mark in marks:
        best = min(others, key=lambda name: means[name][mark - 1])
        difference, error = study.difference(OURS, best, LAST_HALF)
        numbers[mark] = dict(
            ours=float(means[OURS][mark - 1]),
            best_other=best,
            its=float(means[best][mark - 1]),
            difference=float(difference[mark - 1]),
            error=float(error[mark - 1]),
        )
    return numbers


def summarise(study: Study, control: Study | None) -> dict[str, Any]:
    """Return all numbers at the marks as plain JSON values."""

    def numbers(of: Study, name: str, block: str, raw: bool) -> dict[str, list[float]]:
        mean, error = of.curve(name, block, raw=raw)
        return {str(mark): [float(mean[mark - 1]), float(error[mark - 1])] for mark in of.marks}

    def everything(of: Study) -> dict[str, Any]:
        return {
            block: {
                name: dict(
                    normalised=numbers(of, name, block, False),
                    raw=numbers(of, name, block, True),
                    trials_needed=of.trials_needed(name, block),
                )
                for name in of.names
            }
            for block in blocks(of.problem.num_tasks)
        }

    return dict(
        simple_regret=everything(study),
        unrelated=None if control is None else everything(control),
        aims=find_aims(study, control),
    )


# ------------------------------------------------------------------------------------------ tables and a plot


def show(
    study: Study, control: Study | None, seconds: dict[str, float], machine: dict[str, Any], folder: Path
) -> None:
    """Print the tables, aims and times, and write the plot."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    names = blocks(study.problem.num_tasks)
    for block in names:
        console.print(_table(study, block, f"Normalised simple regret, {block}"))
    console.print(_table(study, LAST_HALF, f"Raw simple regret, {LAST_HALF}", raw=True))
    console.print(_trials_table(study, LAST_HALF))
    if control is not None:
        console.print(_table(control, LAST_HALF, f"Unrelated tasks: normalised simple regret, {LAST_HALF}"))
    console.print(
        "In thousandths (normalised: of the task's best less its worst value), after so many trials; mean ± "
        "standard error: of peers over repeats, which serve all orders (they have no memory of other tasks), "
        "of the rest over orders. Random search is its exact expectation."
    )
    for aim in find_aims(study, control):
        console.print(f"{'met' if aim['met'] else 'NOT MET'}: {aim['aim']}: {aim['words']}", highlight=False)
        for mark, number in aim["numbers"].items():
            console.print(f"    {mark}: {_words(number)}", highlight=False)
    took = ", ".join(
        f"{name} {taken:.1f} s" + (" a task" if name in study.names and study.raw[name].shape[2] > 1 else "")
        for name, taken in seconds.items()
    )
    console.print(f"Time: {took or 'none'}", highlight=False)
    console.print(
        "Machine: " + ", ".join(f"{key} {value}" for key, value in machine.items()), highlight=False
    )
    path = folder / "simple_regret.png"
    plot(study, path)
    console.print(f"Plot: {path}", highlight=False)


def _words(number: Any) -> str:
    if isinstance(number, float):
        return f"ratio {number:.3f}"
    return (
        f"{1e3 * number['ours']:.2f} beside {1e3 * number['its']:.2f} of {number['best_other']}, "
        f"difference {1e3 * number['difference']:.2f} ± {1e3 * number['error']:.2f}"
    )


def _table(study: Study, block: str, title: str, *, raw: bool = False) -> RichTable:
    table = RichTable(title=title, title_justify="left")
    table.add_column("method")
    for mark in study.marks:
        table.add_column(str(mark), justify="right")
    curves = {name: study.curve(name, block, raw=raw) for name in study.names}
    lowest = np.min([mean for mean, _ in curves.values()], axis=0)
    for name, (mean, error) in curves.items():
        cells = []
        for at in (mark - 1 for mark in study.marks):
            cell = f"{1e3 * mean[at]:.1f} ± {1e3 * error[at]:.1f}"
            cells.append(f"[bold]{cell}[/bold]" if mean[at] == lowest[at] else cell)
        table.add_row(name, *cells)
    return table


def _trials_table(study: Study, block: str) -> RichTable:
    title = f"Trials until the mean normalised simple regret is at most, {block}"
    table = RichTable(title=title, title_justify="left")
    table.add_column("method")
    for level in LEVELS:
        table.add_column(str(level), justify="right")
    needed = {name: list(study.trials_needed(name, block).values()) for name in study.names}
    fewest = [
        min((n for n in column if n is not None), default=None)
        for column in zip(*needed.values(), strict=True)
    ]
    for name, trials in needed.items():
        cells = []
        for count, least in zip(trials, fewest, strict=True):
            cell = f"> {study.budget}" if count is None else str(count)
            cells.append(f"[bold]{cell}[/bold]" if count is not None and count == least else cell)
        table.add_row(name, *cells)
    return table


def plot(study: Study, path: Path) -> None:
    """Plot normalised simple regret against trials, for the first tasks and for the last."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    shown = [block for block in blocks(study.problem.num_tasks) if block != "all tasks"]
    trials = np.arange(1, study.budget + 1)
    for axes, block in zip(figure.subplots(1, 2, sharey=True), shown, strict=True):
        for name in study.names:
            mean, error = study.curve(name, block)
            mean, low = np.maximum(mean, 1e-6), np.maximum(mean - error, 1e-6)
            width = 2.4 if name == OURS else 1.4
            axes.plot(trials, mean, label=name, color=COLOURS[name], linewidth=width)
            axes.fill_between(trials, low, mean + error, color=COLOURS[name], alpha=0.15, linewidth=0)
        axes.set(xscale="log", yscale="log", title=block, xlabel="trials of the task")
        axes.set_xticks(study.marks, [str(mark) for mark in study.marks])
        axes.minorticks_off()
        axes.grid(alpha=0.3, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        if block == shown[0]:
            axes.set_ylabel("simple regret / range of the task")
            axes.legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
