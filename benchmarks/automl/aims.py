"""The aims of the adaptive mode on one table, and whether they are met.

| regime          | aim                                                                          |
|-----------------|------------------------------------------------------------------------------|
| `own`, `random` | up to 10 trials, at most the best of the methods that see the same past      |
| `own`, `random` | from 20 trials on, at most 1.05 times the best of the methods without a past |
| `own`, `random` | without a past (`gp-ei`), never worse than random search                     |
| `unrelated`     | from 3 trials on, at most 1.05 times its policy without a past               |

Each is met if the paired difference is at most two standard errors above zero. A method that was run on a
single order or draw is left out, because the difference to it has no standard error.
"""

from collections.abc import Iterable
from typing import Any

from benchmarks.automl.study import BASELINES, Study

OURS = "adaptive"
REFERENCES = ("portfolio-complete",)
"""Methods that see more of the past than the others."""
EARLY = 10
ALLOWED = 1.05
ERRORS = 2.0


def find_aims(study: Study) -> list[dict[str, Any]]:
    """Return the aims of a study, each with the marks at which it is missed and all numbers behind it."""
    early = [mark for mark in study.marks if mark <= EARLY]
    late = [mark for mark in study.marks if mark > EARLY]
    with_past = [name for name in study.names if name in BASELINES and name not in (OURS, *REFERENCES)]
    without = [name for name in study.names if name not in BASELINES]
    if study.regime.name == "unrelated":
        aim = f"{OURS} at most {ALLOWED} times gp-ei on unrelated tasks"
        return _aim(study, aim, OURS, ["gp-ei"], [mark for mark in study.marks if mark >= 3], ALLOWED)
    return [
        *_aim(study, f"{OURS} at most the best with the same past", OURS, with_past, early, 1.0),
        *_aim(study, f"{OURS} at most {ALLOWED} times the best without", OURS, without, late, ALLOWED),
        *_aim(study, "gp-ei at most random search", "gp-ei", ["random"], study.marks, 1.0),
    ]


def _aim(
    study: Study, aim: str, name: str, others: Iterable[str], marks: list[int], factor: float
) -> list[dict[str, Any]]:
    """Return the aim as a list of one entry; empty if the methods were not run."""
    if name not in study.regret:
        return []
    others = [other for other in others if other in study.regret and study.num_groups(name, other) > 1]
    if not others or not marks:
        return []
    numbers, missed = {}, []
    for mark in marks:
        # The best other method on the groups that it shares with ours, at this mark.
        best = max(others, key=lambda other: study.difference(name, other)[0][mark - 1])
        difference, error = study.difference(name, best, factor=factor)
        numbers[str(mark)] = dict(
            other=best, difference=float(difference[mark - 1]), error=float(error[mark - 1])
        )
        if difference[mark - 1] > ERRORS * error[mark - 1]:
            missed.append(mark)
    return [dict(study=study.title, aim=aim, met=not missed, missed_at=missed, numbers=numbers)]


def describe(aim: dict[str, Any]) -> str:
    """Return an aim as a line of text."""
    if aim["met"]:
        return f"met: {aim['study']}: {aim['aim']}, at {', '.join(aim['numbers'])} trials"
    worse = [
        f"{mark} ({1e3 * n['difference']:.1f} ± {1e3 * n['error']:.1f} beside {n['other']})"
        for mark, n in aim["numbers"].items()
        if int(mark) in aim["missed_at"]
    ]
    return f"missed: {aim['study']}: {aim['aim']}: behind at {', '.join(worse)}"
