"""The command line of reports: `jlibo memory report`."""

import argparse

from jlibo.printable import printable
from jlibo.tune.memory.memory import Memory, MemoryFileError
from jlibo.tune.space.space import Categorical, SearchSpace

MOST_FEATURES = 2000
"""With more features than this, nothing of the model is computed. An untrusted space may have any size."""


def add_action(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `report` to the actions of `jlibo memory`."""
    report = actions.add_parser("report", help="write an HTML page with plots of the tasks")
    report.add_argument("file", metavar="FILE", help="a tuner's memory")
    report.add_argument(
        "-o", "--out", default="report.html", metavar="PAGE", help="where to write (default: report.html)"
    )
    report.add_argument("--title", metavar="TITLE", help="title of the page")
    report.add_argument(
        "--defaults", type=int, default=5, metavar="K", help="number of default configurations (default: 5)"
    )
    report.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    from jlibo.tune.report import write_report
    from jlibo.tune.tuner import Tuner  # slow imports that other commands do not need

    if options.defaults < 1:
        raise MemoryFileError(f"--defaults should be at least 1, but got {options.defaults}.")
    with Memory.open_existing(options.file, write=False) as memory:
        count, tuner, why = num_features(memory.space), None, None
        if count > MOST_FEATURES:
            why = f"The model is left out: the space has {count:,} features."
        else:
            tuner = Tuner(memory.space, memory=memory)
        try:
            where = write_report(
                memory,
                tuner,
                options.out,
                title=options.title,
                num_defaults=options.defaults,
                no_model=why,
            )
        except OSError as error:
            words = (
                f"cannot write '{printable(options.out)}' ({error.strerror or error}): give another --out."
            )
            raise MemoryFileError(words) from None
    print(f"wrote {printable(where)}; open it in a browser.")
    return 0


def num_features(space: SearchSpace) -> int:
    """Return an upper bound on the number of features. An untrusted space may have any size."""
    alone = in_pairs = squares = 0
    for parameter in space.values():
        most = parameter.num_values - 1 if isinstance(parameter, Categorical) else None
        alone += 6 if most is None else most
        in_pairs += 3 if most is None else most
        squares += 9 if most is None else most**2
    return 1 + alone + (in_pairs**2 - squares) // 2
