"""A lower bound on the memory of an experiment, computed before anything is allocated.

Only arrays that cannot be avoided are counted. The actual need is higher, so whatever is refused here would
not fit.
"""

from jlibo.experiments.experiment import Experiment
from jlibo.experiments.protocols import Offline
from jlibo.experiments.recovery import Recovery
from jlibo.experiments.spec import SettingError
from jlibo.sweeps.budget import free_host_memory

GRID = 1000
"""Number of candidates of a synthetic task; two-dimensional tasks have more."""


def bytes_of_results(experiment: Experiment, num_seeds: int, *, itemsize: int = 4) -> int:
    """Return the bytes of the results of all seeds, which exist twice while chunks are concatenated."""
    protocol = experiment.make_protocol()
    task = protocol.bytes_per_step(itemsize) * protocol.horizon + _num_features(experiment)
    return 2 * num_seeds * len(experiment.agents) * protocol.num_tasks * task


def bytes_of_batch(experiment: Experiment, seeds_at_once: int, *, itemsize: int = 4) -> int:
    """Return a lower bound on the bytes that the agents of a batch of seeds hold during a run."""
    num_features, protocol = _num_features(experiment), experiment.make_protocol()
    settings = experiment.settings()
    candidates = GRID * num_features if "support_size" in settings else 0
    posterior = num_features**2
    if isinstance(protocol, Recovery):
        posterior = 0  # no task is played
        rows = min(protocol.offline_rows, num_features)
    elif isinstance(protocol, Offline):
        # The priors learned after each number of tasks are evaluated at the same time.
        posterior *= protocol.num_tasks
        rows = min(protocol.offline_rows, num_features)
    else:
        rows = min(protocol.horizon, num_features) if settings.get("data") == "all" else 1
    history = protocol.num_tasks * (rows + 1) * num_features
    return itemsize * (candidates + seeds_at_once * (len(experiment.agents) * posterior + 2 * history))


def _num_features(experiment: Experiment) -> int:
    """Return the number of features as far as the settings say."""
    number = experiment.settings().get("num_features", 1)
    return number if isinstance(number, int) else 1


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
        settings = experiment.settings()
        sizes = {
            name: settings[name] for name in ("num_features", "num_tasks", "horizon") if name in settings
        }
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
