"""The loop that evaluates the trials of a task."""

from jlibo.tune.loop.evaluation import EvaluationError as EvaluationError
