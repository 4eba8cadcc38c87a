"""The compiler's options for programs: how long compiling may take, against how fast a program runs.

| level | for                                                 | compilation    | run                       |
|-------|-----------------------------------------------------|----------------|---------------------------|
| 0     | a tuner's programs that run once a task             | a fifth        | two to five times as long |
| 1     | the tuner's other programs, small experiments       | half           | the same                  |
| 2     | sweeps and large experiments                        | three quarters | three fifths              |

The figures are relative to XLA's defaults, on a CPU. Levels 0 and 1 use XLA's older code generator for
fused kernels. It compiles faster, and its kernels are as fast, except updates in place, which it does not
vectorise: the compiler does not know that input and output are the same array. A step of the loop over
steps has three.

Level 2 uses vectors of 512 bits on processors that have them; LLVM's default is 256, since some older
processors lower their clock for wider ones.

All levels leave out what makes small problems slow (`_WHOLE_KERNELS`). A kernel is not divided among cores:
chunks of a sweep run side by side, one per core, and waking another core takes longer than a kernel. Sums and
maxima are one vectorised loop each, and not two passes over windows. Only matrix products are left to the
library YNNPACK, which would also compute maxima, and copy each of them to every point.

A version of XLA that does not know an option compiles with its own defaults. A level that is set in the
environment variable `XLA_FLAGS` is kept.
"""

import os
from typing import Any

_LEVEL = "xla_backend_optimization_level"

Options = dict[str, str | bool | int]

_WHOLE_KERNELS: Options = {
    "xla_disable_hlo_passes": "cpu-parallel-task-assigner,tree_reduction_rewriter",
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT",
}

LEVELS: tuple[Options, ...] = (
    {
        _LEVEL: "0",
        "xla_cpu_use_fusion_emitters": False,
        "xla_llvm_disable_expensive_passes": True,
        "xla_cpu_parallel_codegen_split_count": 1,
        **_WHOLE_KERNELS,
    },
    {_LEVEL: "1", "xla_cpu_use_fusion_emitters": False, **_WHOLE_KERNELS},
    {_LEVEL: "2", "xla_cpu_prefer_vector_width": 512, **_WHOLE_KERNELS},
)


def compiled(lowered: Any, level: int, platform: str = "cpu") -> Any:
    """Return a lowered program, compiled at a level; on other platforms than a CPU with XLA's defaults."""
    if platform != "cpu" or _LEVEL in os.environ.get("XLA_FLAGS", ""):
        return lowered.compile()
    try:
        return lowered.compile(compiler_options=LEVELS[level])
    except Exception:  # this version does not know an option
        return lowered.compile()
