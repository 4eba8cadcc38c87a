"""The example of the report in the documentation: one space of models, tuned on 16 tasks of real data.

    python -m benchmarks.report_example OUT.html [--memory FILE] [--budget N]

The tasks are one-against-one problems of the data sets that come with scikit-learn, of at most 120 rows each,
and the score is the mean accuracy of three folds. With `--memory`, a run that ended is resumed.
"""

import argparse
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import jlibo

SPACE = jlibo.SearchSpace(
    model=jlibo.Categorical(["svc", "forest"]),
    scale=jlibo.Categorical([True, False]),
    C=jlibo.Float(1e-3, 1e3, log=True, when={"model": "svc"}),
    gamma=jlibo.Float(1e-5, 10, log=True, when={"model": "svc"}),
    depth=jlibo.Int(1, 10, when={"model": "forest"}),
    max_features=jlibo.Float(0.1, 1, when={"model": "forest"}),
)
MOST_ROWS = 120


def tasks() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the name, the features and the classes of each task."""
    iris, wine, cancer, digits = load_iris(), load_wine(), load_breast_cancer(), load_digits()
    for name, data in (("iris", iris), ("wine", wine)):
        for pair in itertools.combinations(range(3), 2):
            yield one_against_one(name, data, pair)
    yield one_against_one("cancer", cancer, (0, 1))
    for pair in ((3, 8), (1, 7), (4, 9), (5, 6), (0, 2), (2, 3), (7, 9), (1, 8), (5, 9)):
        yield one_against_one("digits", digits, pair)


def one_against_one(name: str, data: Any, pair: tuple[int, int]) -> tuple[str, np.ndarray, np.ndarray]:
    (rows,) = np.nonzero(np.isin(data.target, pair))
    rows = np.random.default_rng(0).permutation(rows)[:MOST_ROWS]
    return f"{name} {pair[0]} against {pair[1]}", data.data[rows], data.target[rows]


def accuracy(features: np.ndarray, classes: np.ndarray, *, model: str, scale: bool, **own: Any) -> float:
    if model == "svc":
        made: Any = SVC(C=own["C"], gamma=own["gamma"])
    else:
        made = RandomForestClassifier(
            20, max_depth=own["depth"], max_features=own["max_features"], random_state=0
        )
    made = make_pipeline(StandardScaler(), made) if scale else made
    return float(cross_val_score(made, features, classes, cv=3).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", help="the page to write")
    parser.add_argument("--memory", help="file of the memory (default: in RAM)")
    parser.add_argument("--budget", type=int, default=30, help="trials of each task (default: 30)")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    tuner = jlibo.Tuner(SPACE, options.memory)
    for name, features, classes in tasks():
        with tuner.task(name, budget=options.budget) as task:
            for trial in task:
                task.tell(trial, accuracy(features, classes, **trial.params))
        print(task)
    print(tuner.report(options.out, title="Two models on 16 small data sets"))


if __name__ == "__main__":
    main()
