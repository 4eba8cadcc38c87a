"""Statements that read and write the reports of trials, inside the transaction of their caller. Internal.

A report is a score of a trial at a step, before the trial is finished. The reports of a trial are its curve.
"""

import math
import sqlite3
from collections.abc import Mapping
from typing import Any

from jlibo.printable import printable
from jlibo.tune.memory.records import REPORT_CONTENT, DamagedRow, row_checksum, whole
from jlibo.tune.memory.rows import insert_row, real

Curve = dict[int, float | None]
"""Reported scores by step, in the order of the steps; None for a score that is not finite."""


def read_curves(database: sqlite3.Connection, where: str, *values: Any) -> dict[int, Curve]:
    """Return the curves of the trials that meet `where`, a condition in SQL, by id; those with a report."""
    question = (
        f"SELECT id, {', '.join(REPORT_CONTENT)}, checksum FROM reports "
        f"WHERE trial_id IN (SELECT id FROM trials WHERE {where}) ORDER BY trial_id, step"
    )
    curves: dict[int, Curve] = {}
    for row in database.execute(question, values):
        trial_id, step, score = checked_report(*row)
        curves.setdefault(trial_id, {})[step] = score
    return curves


def write_curve(database: sqlite3.Connection, trial_id: int, curve: Mapping[int, float | None]) -> None:
    """Write reports of a trial. A report at a step that the trial has replaces the old one."""
    for step, score in curve.items():
        database.execute("DELETE FROM reports WHERE trial_id = ? AND step = ?", (trial_id, step))
        insert_row(database, "reports", REPORT_CONTENT, (trial_id, step, real(score)))


def checked_report(
    id: Any, trial_id: Any, step: Any, score: Any, checksum: Any, *, verify: bool = True
) -> tuple[int, int, float | None]:
    """Return trial id, step and score of a row of `reports`, or raise a `DamagedRow`."""
    try:
        if verify and checksum != row_checksum((trial_id, step, score)):
            raise ValueError("its checksum does not match")
        whole("step", step, at_least=0)
        if type(trial_id) is not int or not (
            score is None or (type(score) is float and math.isfinite(score))
        ):
            raise ValueError("its score is not a number")
        return trial_id, step, score
    except ValueError as error:
        raise DamagedRow(f"report {id}: {printable(error, max_length=200)}") from error
