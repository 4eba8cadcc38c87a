"""The compiler's options for programs: how long compiling may take, against how fast a program runs.

| level | for                                                    | compilation | run                       |
|-------|--------------------------------------------------------|-------------|---------------------------|
| 0     | a tuner's programs that run once a task                | a fifth     | two to five times as long |
| 1     | the tuner's other programs                             | three fifths| the same                  |
| 2     | sweeps and experiments                                 | six sevenths| the same                  |

The figures are relative to XLA's default, on a CPU. Levels 0 and 1 use XLA's older code generator for fused
kernels, which compiles faster and is as fast for these programs; a version of XLA that no longer has it
compiles with its own defaults. A level that is set in the environment variable `XLA_FLAGS` is kept.
"""

import os
from typing import Any

_LEVEL = "xla_backend_optimization_level"

Options = dict[str, str | bool | int]

TUNER: tuple[Options, ...] = (
    {
        _LEVEL: "0",
        "xla_cpu_use_fusion_emitters": False,
        "xla_llvm_disable_expensive_passes": True,
        "xla_cpu_parallel_codegen_split_count": 1,
    },
    {_LEVEL: "1", "xla_cpu_use_fusion_emitters": False},
)


def compiler_options(platform: str) -> dict[str, str | bool] | None:
    """Return the compiler's options for programs of sweeps and experiments; None for its defaults.

    On a CPU, level 3 (XLA's default) takes a seventh longer to compile than level 2, and the program runs no
    faster. A level that is set in the environment variable `XLA_FLAGS` is kept.
    """
    if platform != "cpu" or _LEVEL in os.environ.get("XLA_FLAGS", ""):
        return None
    return {_LEVEL: "2"}


def compiled(lowered: Any, level: int) -> Any:
    """Return a lowered program for a CPU, compiled at level 0 or 1."""
    if _LEVEL in os.environ.get("XLA_FLAGS", ""):
        return lowered.compile()
    try:
        return lowered.compile(compiler_options=TUNER[level])
    except Exception:  # this version does not know an option
        return lowered.compile()
