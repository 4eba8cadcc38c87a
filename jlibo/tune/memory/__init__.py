"""The memory: tasks and their trials in one SQLite file."""

from jlibo.tune.memory.memory import Memory as Memory
from jlibo.tune.memory.memory import MemoryFileError as MemoryFileError
from jlibo.tune.memory.memory import MemoryMismatch as MemoryMismatch
from jlibo.tune.memory.memory import MergeReport as MergeReport
from jlibo.tune.memory.memory import SpaceChangedWarning as SpaceChangedWarning
from jlibo.tune.memory.memory import TrialGivenUpWarning as TrialGivenUpWarning
from jlibo.tune.memory.memory import TrialStateError as TrialStateError
