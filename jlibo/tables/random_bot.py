"""The CSV layout of the OpenML random bot's results (Kuehn, Probst, Thomas, Bischl 2018)."""

import os
from collections.abc import Sequence

from jlibo.front_door import front_door
from jlibo.tables.csv_file import read_csv
from jlibo.tables.table import Table


@front_door
def read_random_bot(
    path: str | os.PathLike[str], *, metrics: str | Sequence[str] = ("auc", "accuracy", "brier")
) -> Table:
    r"""Read the GLMNET runs of the OpenML random bot from a CSV file.

    A task is a data set (column `data_id`) with configurations of its own. The parameters are `alpha` and
    `lambda`, which becomes `ln lambda`. Other columns are ignored.

    **Arguments:**

    - `path`: the file.
    - `metrics`: columns to read as metrics. Of the default ones, less is better only for `brier`.

    **Returns:** a `Table`.

    **Raises:** `ValueError` under the rules of `read_csv`.

    ```python
    import pathlib
    import tempfile

    import jlibo

    path = pathlib.Path(tempfile.mkdtemp()) / "glmnet.csv"
    path.write_text("data_id,alpha,lambda,auc\n3,0.5,0.01,0.9\n3,1.0,0.1,0.8\n")
    table = jlibo.read_random_bot(path, metrics="auc")
    ```
    """
    return read_csv(path, task="data_id", params=("alpha", "lambda"), metrics=metrics, log=("lambda",))
