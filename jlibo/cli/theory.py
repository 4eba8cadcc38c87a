"""The command line of the theory: `jlibo theory plan`.

Numbers are checked before jax starts. Errors that the user can fix are raised as a `UsageError`.
"""

import argparse
import json
import math

from jlibo.cli.failures import UsageError
from jlibo.printable import printable

_COUNTS = {
    "tasks": ("num_tasks", "m, the number of tasks"),
    "horizon": ("horizon", "n, the steps of a task"),
    "kernels": ("num_kernels", "p, the number of base kernels"),
    "support": ("support_size", "s*, the number of kernels that matter"),
}
_NUMBERS = {
    "noise": ("noise_std", "sigma, the noise level"),
    "norm": ("norm", "bound on the norm of a task's coefficients"),
    "beta-min": ("beta_min", "c_1, the smallest norm of a kernel that matters, per task"),
}
_OPTIONAL = {
    "mean-square": ("mean_square", "z, the smallest mean square of a feature (default 0.5, cosines)"),
    "omega": ("omega", "threshold of the selection (default half of beta-min)"),
    "alpha": ("alpha", "share of votes that a kernel needs in the federated setting (default 0.25)"),
    "delta": ("delta", "probability that a guarantee fails (default 0.1)"),
}


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `theory` and its actions to the commands of `jlibo`."""
    theory = commands.add_parser("theory", help="what the paper's theorems say about your numbers")
    actions = theory.add_subparsers(dest="action", metavar="ACTION", required=True)
    plan = actions.add_parser(
        "plan",
        help="which assumptions bind, the suggested lam and omega, and the predicted regret",
        description="Print which assumptions bind, from how many rows and tasks on the guarantees say "
        "anything, the lam, omega and exploration that they suggest, and the regret bound by term.",
    )
    for name, (_, words) in {**_COUNTS, **_NUMBERS}.items():
        plan.add_argument(f"--{name}", required=True, metavar=name.upper().replace("-", "_"), help=words)
    for name, (_, words) in _OPTIONAL.items():
        plan.add_argument(f"--{name}", metavar=name.upper().replace("-", "_"), help=words)
    plan.add_argument("--json", action="store_true", help="print the numbers as JSON")
    plan.set_defaults(run=_plan)


def _plan(options: argparse.Namespace) -> int:
    given = vars(options)
    values = {}
    for name, (argument, _) in _COUNTS.items():
        values[argument] = _whole_number(name, given[name])
    for name, (argument, _) in {**_NUMBERS, **_OPTIONAL}.items():
        text = given[name.replace("-", "_")]
        if text is not None:
            values[argument] = _number(name, text)
    from jlibo.theory.planner import plan

    try:
        result = plan(**values)
    except ValueError as error:
        raise UsageError(_in_options(str(error))) from None
    print(json.dumps(_finite(result.as_dict()), indent=2) if options.json else result)
    return 0


def _whole_number(name: str, text: str) -> int:
    try:
        number = int(text.replace("_", "").replace(",", "")) if len(text) < 30 else None
    except ValueError:
        number = None
    if number is None or not 1 <= number < 2**53:
        raise UsageError(f"--{name} should be a whole number of at least 1, but got '{printable(text)}'.")
    return number


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"--{name} should be a number, but got '{printable(text)}'.")
    return number


def _in_options(message: str) -> str:
    """Return the message of an error with the names of options in place of those of arguments."""
    for name, (argument, _) in {**_COUNTS, **_NUMBERS, **_OPTIONAL}.items():
        message = message.replace(f"`{argument}`", f"--{name}")
    return message


def _finite(value):
    """Replace infinity, which JSON lacks, by None."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
