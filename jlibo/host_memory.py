"""The memory that this process may still use, as reported by the operating system."""

from pathlib import Path


class BudgetError(ValueError):
    """More memory is needed than is available. Raised before allocation if the need can be predicted."""


UNKNOWN = 4 * 2**30
"""Free memory that is assumed if the system does not report it: 4 GiB."""


def free_host_memory() -> int:
    """Return the free bytes of the machine, or of the container's limit if that is less."""
    found = [free for free in (_machine_memory(), _group_memory()) if free is not None]
    return min(found, default=UNKNOWN)


def in_units(num_bytes: int) -> str:
    """Return a number of bytes as readable text, such as "1.5 GiB"."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            whole, rest = divmod(num_bytes, size)  # integers, because a float could overflow
            return f"{whole:,}.{rest * 10 // size} {unit}"
    return f"{num_bytes} bytes"


def _machine_memory() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def _group_memory(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the remaining bytes of the control group's limit; None if there is no limit."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        return None if limit == "max" else max(int(limit) - used, 0)
    except (OSError, ValueError):
        return None
