"""Tuning: search spaces of named parameters, an ask and tell interface, and a persistent memory."""

from jlibo.tune.explanation import Estimate as Estimate
from jlibo.tune.explanation import Explanation as Explanation
from jlibo.tune.explanation import Recommendation as Recommendation
from jlibo.tune.explanation import SimilarTask as SimilarTask
from jlibo.tune.memory.memory import Memory as Memory
from jlibo.tune.memory.memory import MemoryFileError as MemoryFileError
from jlibo.tune.memory.memory import MemoryMismatch as MemoryMismatch
from jlibo.tune.memory.memory import TrialGivenUpWarning as TrialGivenUpWarning
from jlibo.tune.memory.memory import TrialStateError as TrialStateError
from jlibo.tune.portfolio import Defaults as Defaults
from jlibo.tune.process import ForkedProcessError as ForkedProcessError
from jlibo.tune.space.dictionary import LargeDictionaryWarning as LargeDictionaryWarning
from jlibo.tune.space.dictionary import SpaceFeatures as SpaceFeatures
from jlibo.tune.space.dictionary import space_features as space_features
from jlibo.tune.space.parameters import Categorical as Categorical
from jlibo.tune.space.parameters import Float as Float
from jlibo.tune.space.parameters import Int as Int
from jlibo.tune.space.parameters import Parameter as Parameter
from jlibo.tune.space.space import SearchSpace as SearchSpace
from jlibo.tune.stopping import ExpectedGainBelow as ExpectedGainBelow
from jlibo.tune.summary import TaskSummary as TaskSummary
from jlibo.tune.task import TunerTask as TunerTask
from jlibo.tune.task import UntoldTrialsWarning as UntoldTrialsWarning
from jlibo.tune.trial import Trial as Trial
from jlibo.tune.tuner import Tuner as Tuner
