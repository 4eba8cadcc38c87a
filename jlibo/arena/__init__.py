"""The arena: every rival of LiBO on every kind of environment, with the same draws.

| module                | what it is                                                             |
|-----------------------|------------------------------------------------------------------------|
| `joint`, `schedule`   | contract of methods that see all tasks, and which tasks a round plays  |
| `rounds`              | the driver: one scan over rounds                                       |
| `method`, `cards`     | a method, and what it is told                                          |
| `environment(s)`      | an environment, and the list of them                                   |
| `registry`            | the list of methods                                                    |
| `run`, `result`       | all methods on all environments, and the numbers                       |
| `claims`, `tables`    | the paper's tables 1 to 3 as data, and tables in Markdown              |
| `estimators`          | estimates from sufficient statistics                                   |
"""

from jlibo.arena.cards import PRIVILEGES as PRIVILEGES
from jlibo.arena.claims import CLAIMS as CLAIMS
from jlibo.arena.environment import Environment as Environment
from jlibo.arena.environments import ENVIRONMENTS as ENVIRONMENTS
from jlibo.arena.joint import AbstractJointLearner as AbstractJointLearner
from jlibo.arena.joint import Choice as Choice
from jlibo.arena.joint import Turn as Turn
from jlibo.arena.method import Method as Method
from jlibo.arena.method import SequentialAgent as SequentialAgent
from jlibo.arena.one_after_another import OneAfterAnother as OneAfterAnother
from jlibo.arena.registry import METHODS as METHODS
from jlibo.arena.result import ArenaResult as ArenaResult
from jlibo.arena.result import Score as Score
from jlibo.arena.rounds import RoundsResult as RoundsResult
from jlibo.arena.rounds import run_rounds as run_rounds
from jlibo.arena.run import run_arena as run_arena
from jlibo.arena.run import run_method as run_method
from jlibo.arena.schedule import Schedule as Schedule
from jlibo.arena.tables import claims_table as claims_table
from jlibo.arena.tables import environment_table as environment_table
from jlibo.arena.tables import method_table as method_table
