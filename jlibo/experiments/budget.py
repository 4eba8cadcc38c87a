"""An estimate of the memory that an experiment needs, made before anything is allocated.

It counts the arrays that cannot be avoided, so the true need is higher: what is refused here does not fit.
"""

from jlibo.experiments.settings import Experiment, SettingError
from jlibo.sweeps.budget import free_host_memory

GRID = 1000
"""Candidates of a synthetic task; two-dimensional ones have more."""


def bytes_of_results(experiment: Experiment, num_seeds: int, *, itemsize: int = 4) -> int:
    """Bytes of all seeds' results, which are held twice when the batches of seeds are joined."""
    # Regret and reward, and as other types the action and whether it was explored.
    step = itemsize if experiment.kind == "offline" else 2 * itemsize + 5
    task = step * experiment.horizon + experiment.num_features
    return 2 * num_seeds * len(experiment.agents) * experiment.num_tasks * task


def bytes_of_batch(experiment: Experiment, seeds_at_once: int, *, itemsize: int = 4) -> int:
    """Bytes of what the agents of a batch of seeds hold at least while they play."""
    num_features, num_tasks = experiment.num_features, experiment.num_tasks
    candidates = GRID * num_features if experiment.environment == "synthetic" else 0
    posterior = num_features**2
    if experiment.kind == "offline":
        # The kernels learned after each number of tasks play at the same time.
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
    """Raise `SettingError` if `num_seeds` seeds need more memory than `budget` bytes, or than is free."""
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
    # In whole numbers: what is asked for may be more than a float holds.
    tenths = number * 10 // 2**30
    return f"{tenths // 10:,}.{tenths % 10} GB"
