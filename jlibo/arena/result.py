"""The result of an arena: regret of every cell, and numbers relative to the oracles.

| number          | what it is                                                                              |
|-----------------|-----------------------------------------------------------------------------------------|
| `regret`        | regret per task, a mean over tasks and seeds                                            |
| `ratio`         | the same divided by that of the oracle                                                  |
| `excess`        | regret per task minus that of the method's own oracle, paired by seed                   |
| `early`, `late` | the excess in the first and in the last quarter of the tasks                            |

A method whose late excess is zero within its error has become as good as its oracle. If all tasks run at the
same time, no task is early or late, and the two numbers say nothing.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np

from jlibo.arena.cards import PRIVILEGES
from jlibo.arena.claims import claims_of
from jlibo.arena.environment import Environment
from jlibo.arena.environments import GROWTH
from jlibo.arena.method import Method
from jlibo.checks import fail
from jlibo.front_door import front_door
from jlibo.lifelong.metrics import mean_and_standard_error
from jlibo.sweeps.labelled import Labelled, Variable

_NUMBER = re.compile(r"[-(]?[\d.]|-?$")
"""The beginning of a number in a table, or an empty cell."""


@final
class Cell(NamedTuple):
    """One method on one environment."""

    regret: np.ndarray | None
    """Regret of every step, `[seeds, tasks, steps]`; None if the method does not run there."""
    refusal: str | None
    """Why it does not run there."""
    seconds: float
    """Wall time, with compilation."""


@final
class Estimate(NamedTuple):
    """A mean over seeds and its standard error."""

    mean: float
    error: float

    @staticmethod
    def of(values: np.ndarray) -> "Estimate":
        """Return mean and standard error of one number per seed."""
        mean, error = mean_and_standard_error(values)
        return Estimate(float(mean), float(error))

    def in_words(self) -> str:
        """Return the estimate as text, such as "12.3 ± 0.5"."""
        size = f"{self.mean:.3g}" if abs(self.mean) < 1000 else f"{self.mean:.0f}"
        return f"{size} ± {self.error:.2g}" if self.error < 10 else f"{size} ± {self.error:.0f}"


@final
class Score(NamedTuple):
    """The numbers of a cell; see the module."""

    regret: Estimate
    ratio: float | None
    """None if the oracle has no regret."""
    excess: Estimate
    early: Estimate
    late: Estimate
    oracle: str
    """The method from which the excess is measured."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class ArenaResult:
    """Regret of every method on every environment; returned by `run_arena`."""

    methods: tuple[Method, ...]
    environments: tuple[Environment, ...]
    num_seeds: int
    first_seed: int
    cells: dict[tuple[str, str], Cell]
    """By names of method and environment."""

    @front_door
    def task_regret(self, method: str, environment: str) -> np.ndarray | None:
        """Return the regret of each task, `[seeds, tasks]`; None if the method does not run there."""
        if (method, environment) not in self.cells:
            known = [one.name for one in self.methods], [one.name for one in self.environments]
            fail("method, environment", f"one of {known}", (method, environment))
        regret = self.cells[method, environment].regret
        return None if regret is None else regret.sum(-1)

    @front_door
    def score(self, method: str, environment: str) -> Score | None:
        """Return the numbers of a cell, or None if the method does not run there."""
        own = self.task_regret(method, environment)
        if own is None:
            return None
        oracle = self.oracle_of(method, environment)
        reference, base = self.task_regret(oracle, environment), self.task_regret("oracle", environment)
        assert reference is not None and base is not None
        excess = own - reference
        quarter = max(1, own.shape[1] // 4)
        has_regret = base.mean() > 1e-6 * max(own.mean(), 1e-300)
        return Score(
            Estimate.of(own.mean(1)),
            float(own.mean() / base.mean()) if has_regret else None,
            Estimate.of(excess.mean(1)),
            Estimate.of(excess[:, :quarter].mean(1)),
            Estimate.of(excess[:, -quarter:].mean(1)),
            oracle,
        )

    def oracle_of(self, method: str, environment: str) -> str:
        """Return the name of the method from which the excess of `method` is measured."""
        named = {one.name: one for one in self.methods}[method].oracle
        cell = self.cells.get((named, environment))
        return named if cell is not None and cell.regret is not None else "oracle"

    def labelled(self) -> Labelled:
        """Return regret by task and by step as labelled arrays, NaN where a method does not run.

        `NAME` has the axes method, seed and `NAME task`, for every environment NAME. `NAME by step` is a mean
        over tasks.
        """
        names = [method.name for method in self.methods]
        arrays = {}
        for environment in self.environments:
            shape = (self.num_seeds, environment.num_tasks, environment.horizon)
            missing = np.full(shape, np.nan)
            found = [self.cells[name, environment.name].regret for name in names]
            regret = np.stack([missing if one is None else one for one in found])
            tasks, steps = f"{environment.name} task", f"{environment.name} step"
            arrays[environment.name] = Variable(("method", "seed", tasks), regret.sum(-1))
            arrays[f"{environment.name} by step"] = Variable(("method", "seed", steps), regret.mean(2))
        seeds = np.arange(self.first_seed, self.first_seed + self.num_seeds)
        coords = {"method": Variable(("method",), np.asarray(names)), "seed": Variable(("seed",), seeds)}
        return Labelled(arrays, coords)

    def ratios(self) -> np.ndarray:
        """Return regret per task relative to the oracle, `[methods, environments]`; NaN for none."""
        rows = []
        for method in self.methods:
            scores = [self.score(method.name, environment.name) for environment in self.environments]
            rows.append([np.nan if one is None or one.ratio is None else one.ratio for one in scores])
        return np.asarray(rows, float)

    def growth(self) -> dict[str, dict[int, Score]]:
        """Return the scores of each method by the number of features, on environments that differ in it only.

        Empty unless there are two of `jlibo.arena.environments.GROWTH`.
        """
        sized = [one for one in self.environments if one.name in GROWTH]
        if len(sized) < 2:
            return {}
        answer = {}
        for method in self.methods:
            scores = {one.num_features: self.score(method.name, one.name) for one in sized}
            answer[method.name] = {size: score for size, score in scores.items() if score is not None}
        return answer

    def summary(self) -> dict[str, Any]:
        """Return all numbers, cards and claims, as JSON can represent them."""
        return {
            "seeds": self.num_seeds,
            "first_seed": self.first_seed,
            "methods": {
                method.name: {
                    "summary": method.summary,
                    "reference": method.reference,
                    "setting": method.setting,
                    "told": [PRIVILEGES[name] for name in method.card],
                    "claims": [claim._asdict() for claim in claims_of(method.name)],
                }
                for method in self.methods
            },
            "environments": {
                one.name: {
                    "summary": one.summary,
                    "source": one.source,
                    "actions": one.kind,
                    "num_features": one.num_features,
                    "num_tasks": one.num_tasks,
                    "horizon": one.horizon,
                    "methods": {method.name: self._numbers(method.name, one.name) for method in self.methods},
                }
                for one in self.environments
            },
            "growth": {
                name: {str(size): score.excess._asdict() for size, score in scores.items()}
                for name, scores in self.growth().items()
            },
        }

    def _numbers(self, method: str, environment: str) -> dict[str, Any]:
        cell, score = self.cells[method, environment], self.score(method, environment)
        if score is None:
            return {"refusal": cell.refusal}
        numbers = {
            name: value._asdict() if isinstance(value, Estimate) else value
            for name, value in score._asdict().items()
        }
        return {**numbers, "seconds": cell.seconds}

    def in_words(self, method: str, environment: str) -> str:
        """Return a cell as text: the ratio, or the regret in brackets if the oracle has no regret."""
        score = self.score(method, environment)
        if score is None:
            return "-"
        return f"({max(score.regret.mean, 0):.3g})" if score.ratio is None else f"{score.ratio:.2f}"

    def about(self) -> dict[str, Any]:
        """Return what was run, as JSON can represent it."""
        return {
            "methods": [method.name for method in self.methods],
            "environments": {one.name: [one.num_tasks, one.horizon] for one in self.environments},
            "seeds": self.num_seeds,
            "first_seed": self.first_seed,
        }

    def table(self) -> str:
        """Return regret per task relative to the oracle, and the cards, as a table in Markdown.

        Where the oracle has no regret, the cell has the regret per task, in brackets.
        """
        lines = [["method", *(one.name for one in self.environments), "is told, or needs"]]
        for method in self.methods:
            cells = [self.in_words(method.name, one.name) for one in self.environments]
            told = ", ".join(PRIVILEGES[name] for name in method.card) or "nothing"
            lines.append([method.name, *cells, told])
        return markdown(lines)


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown. The first line has the headings. Columns of numbers are aligned right."""
    columns = zip(*lines, strict=True)
    rule = ["---:" if len(lines) > 1 and all(map(_NUMBER.match, column[1:])) else "---" for column in columns]
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:])) + "\n"
