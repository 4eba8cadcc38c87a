"""A lower bound on the memory of an experiment, computed before anything is allocated.

Only arrays that cannot be avoided are counted. The actual need is higher, so whatever is refused here would
not fit.
"""

from jlibo.experiments.settings import Experiment, SettingError
from jlibo.sweeps.budget import free_host_memory

GRID = 1000
"""Number of candidates of a synthetic task; two-dimensional tasks have more."""


def bytes_of_results(experiment: Experiment, num_seeds: int, *, itemsize: int = 4) -> int:
    """Return the bytes of the results of all seeds, which exist twice while batches are concatenated."""
    # Regret and reward, an action (4 bytes), and whether it was explored (1 byte).
    step = itemsize if experiment.kind == "offline" else 2 * itemsize + 5
    task = step * experiment.horizon + experiment.num_features
    return 2 * num_seeds * len(experiment.agents) * experiment.num_tasks * task


def bytes_of_batch(experiment: Experiment, seeds_at_once: int, *, itemsize: int = 4) -> int:
    """Return a lower bound on the bytes that the agents of a batch of seeds hold during a run."""
    num_features, num_tasks = experiment.num_features, experiment.num_tasks
    candidates = GRID * num_features if experiment.environment == "synthetic" else 0
    posterior = num_features**2
    if experiment.kind == "offline":
        # The priors learned after each number of tasks are evaluated at the same time.
        posterior *= num_tasks
        rows = min(experiment.offline_rows, num_features)
    else:
        rows = min(experiment.horizon, num_features) if experiment.data == "all" else 1
    history = num_tasks * (rows + 1) * num_features
    return itemsize * (candidates + seeds_at_once * (len(experiment.agents) * posterior + 2 * history))


def check_fits(
    experiment: Experiment,
    num_seeds: int,
    *,
    seeds_at_once: int,
    itemsize: int = 4,
    budget: int | None = None,
) -> None:
    """Raise a `SettingError` if `num_seeds` seeds need more than `budget` bytes (default: free memory)."""
    budget = free_host_memory() if budget is None else budget

    def needed(seeds: int) -> int:
        batch = bytes_of_batch(experiment, min(seeds, seeds_at_once), itemsize=itemsize)
        return batch + bytes_of_results(experiment, seeds, itemsize=itemsize)

    if needed(num_seeds) <= budget:
        return
    if needed(1) > budget:
        sizes = {name: getattr(experiment, name) for name in ("num_features", "num_tasks", "horizon")}
        shown = ", ".join(f"{name}={value}" for name, value in sizes.items())
        raise SettingError(
            f"{experiment.name}: {shown} need at least {_gigabytes(needed(1))} of memory for one seed, "
            f"but {_gigabytes(budget)} are free: make one of them smaller."
        )
    raise SettingError(
        f"{experiment.name}: {num_seeds} seeds need at least {_gigabytes(needed(num_seeds))} of memory, "
        f"but {_gigabytes(budget)} are free: give fewer --seeds."
    )


def _gigabytes(number: int) -> str:
    # Integer arithmetic: the number may exceed the range of a float.
    tenths = number * 10 // 2**30
    return f"{tenths // 10:,}.{tenths % 10} GB"
