"""The CSV layout of the OpenML random bot's results (Kuehn, Probst, Thomas, Bischl 2018)."""

import os
from collections.abc import Sequence

from jlibo.tables.csv_file import read_csv
from jlibo.tables.table import Table


def read_random_bot(
    path: str | os.PathLike, *, metrics: str | Sequence[str] = ("auc", "accuracy", "brier")
) -> Table:
    """Read the bot's GLMNET runs: columns data_id, alpha, lambda and `metrics`; others are ignored.

    A task is a data set (`data_id`), with configurations of its own; lambda becomes `ln lambda`. `brier` is
    the one of the metrics where less is better. The rules are those of `read_csv`.
    """
    return read_csv(path, task="data_id", params=("alpha", "lambda"), metrics=metrics, log=("lambda",))
