"""Sweeps of one function over seeds and hyper-parameters: in chunks, on all devices, with resume."""

from jlibo.sweeps.budget import BudgetError as BudgetError
from jlibo.sweeps.folder import SweepFolderError as SweepFolderError
from jlibo.sweeps.folder import SweepStorageError as SweepStorageError
from jlibo.sweeps.folder import SweepWarning as SweepWarning
from jlibo.sweeps.labelled import Labelled as Labelled
from jlibo.sweeps.labelled import Variable as Variable
from jlibo.sweeps.progress import task_ticks as task_ticks
from jlibo.sweeps.progress import tick as tick
from jlibo.sweeps.run import sweep as sweep
from jlibo.sweeps.segments import AbstractSegmentedRun as AbstractSegmentedRun
