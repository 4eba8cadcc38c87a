"""The direction of the scores in any of its spellings. Internal."""

from typing import Any

import numpy as np

from jlibo.checks import did_you_mean, fail

DIRECTIONS = {"maximise": True, "maximize": True, "minimise": False, "minimize": False}


def maximise_of(*, maximise: Any = None, maximize: Any = None, direction: Any = None) -> bool | None:
    """Return whether a higher score is better, from any of three arguments; None if none was given.

    **Raises:**

    - `ValueError`: an argument has another type or value, or two of them disagree.
    """
    given: dict[str, bool] = {}
    for name, value in (("maximise", maximise), ("maximize", maximize)):
        if value is not None:
            if not isinstance(value, bool | np.bool_):
                fail(name, "True or False", repr(value))
            given[f"{name}={bool(value)}"] = bool(value)
    if direction is not None:
        word = getattr(direction, "name", direction)  # a StudyDirection of Optuna has a name
        known = word.lower() if isinstance(word, str) else None
        if known not in DIRECTIONS:
            hint = did_you_mean(direction, DIRECTIONS)
            fail("direction", "'maximize' or 'minimize'", f"{direction!r}{hint}")
        given[f"direction={known!r}"] = DIRECTIONS[known]
    if len(set(given.values())) > 1:
        fail("maximise", "the same in all its spellings", " and ".join(given))
    return next(iter(given.values()), None)
