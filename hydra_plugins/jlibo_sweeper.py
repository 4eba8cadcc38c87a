"""A Hydra sweeper that learns from past sweeps: `python app.py -m hydra/sweeper=jlibo 'x=interval(0, 1)'`.

Hydra imports every module of the namespace package `hydra_plugins` when an application starts. This one
therefore imports jlibo, and with it jax, only when it sweeps.
"""

import itertools
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser import types as grammar
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

log = logging.getLogger(__name__)


@dataclass
class JliboSweeperConf:
    """The settings under `hydra.sweeper`.

    - `memory`: the path of the memory, relative to where the application is started; null for none.
    - `task`: the name of the task, such as that of the data set.
    - `budget`: the number of jobs in total; those of an earlier sweep of the same task count.
    - `batch_size`: the number of jobs that are launched together.
    - `direction`: "maximize" or "minimize".
    - `params`: sweeps as on the command line, which come before those of the command line.
    - `tuner_options`: further arguments of `jlibo.Tuner`, such as `{seed: 1}`.
    """

    _target_: str = "hydra_plugins.jlibo_sweeper.JliboSweeper"
    memory: str | None = None
    task: str = "${hydra.job.name}"
    budget: int = 50
    batch_size: int = 1
    direction: str = "maximize"
    params: dict[str, Any] = field(default_factory=dict)
    tuner_options: dict[str, Any] = field(default_factory=dict)


ConfigStore.instance().store(group="hydra/sweeper", name="jlibo", node=JliboSweeperConf, provider="jlibo")


class JliboSweeper(Sweeper):
    """Launches jobs whose overrides a `jlibo.Tuner` suggests, and tells it what they return."""

    def __init__(
        self,
        memory: str | None,
        task: str,
        budget: int,
        batch_size: int,
        direction: str,
        params: DictConfig,
        tuner_options: DictConfig,
    ) -> None:
        self.memory, self.task, self.budget, self.batch_size = memory, task, budget, batch_size
        self.tuner_options = {"direction": direction} | OmegaConf.to_container(tuner_options)
        self.params = params

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> list[JobReturn]:
        """Run the sweep, write `optimization_results.yaml` to its folder, and return all jobs."""
        import jlibo

        words = [f"{name}={value}" for name, value in self.params.items()] + arguments
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        # The last override of a key counts, as in Hydra.
        overrides = {one.get_key_element(): one for one in parser.parse_overrides(words)}
        fixed = [one.input_line for one in overrides.values() if not one.is_sweep_override()]
        space = {key: _parameter(one) for key, one in overrides.items() if one.is_sweep_override()}
        folder = Path(self.config.hydra.sweep.dir)
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, folder / "multirun.yaml")
        jobs: list[JobReturn] = []
        tuner = jlibo.Tuner(jlibo.SearchSpace(space), self.memory, **self.tuner_options)
        with tuner, tuner.task(self.task, self.budget) as task:
            while trials := list(itertools.islice(iter(task.next_trial, None), self.batch_size)):
                batch = [fixed + [f"{key}={value}" for key, value in one.params.items()] for one in trials]
                self.validate_batch_is_legal(batch)
                launched = self.launcher.launch(batch, initial_job_idx=len(jobs))
                for trial, job in zip(trials, launched, strict=True):
                    score, error = _score(job)
                    if error is None:
                        task.tell(trial, score)
                    else:
                        log.warning("job %s failed: %s", job.overrides, error)
                        task.fail(trial, error)
                jobs += launched
            best = task.best
        if best is None and jobs:
            _ = jobs[-1].return_value  # raises the exception of the last job
            raise ValueError("no job returned a number to optimise: return the score from the main function.")
        if best is not None:
            found = {
                "name": "jlibo",
                "best_evaluated_params": best.params,
                "best_evaluated_value": best.score,
            }
            OmegaConf.save(OmegaConf.create(found), folder / "optimization_results.yaml")
            log.info("best value %s with %s", best.score, best.params)
        return jobs


def _parameter(override: grammar.Override) -> Any:
    """Return the parameter of a sweep. Choices are kept as words of Hydra's grammar, to be written again."""
    import jlibo

    sweep = override.value()
    if isinstance(sweep, grammar.IntervalSweep):
        kind = jlibo.Int if isinstance(sweep.start, int) and isinstance(sweep.end, int) else jlibo.Float
        return kind(sweep.start, sweep.end, log="log" in sweep.tags)
    if isinstance(sweep, grammar.RangeSweep):
        numbers = sweep.range()
        kind, numbers = (jlibo.Int, numbers) if isinstance(numbers, range) else (jlibo.Float, list(numbers))
        return kind(*sorted((numbers[0], numbers[-1])), step=abs(sweep.step))
    return jlibo.Categorical([_word(value) for value in override.sweep_iterator()])


def _word(value: Any) -> str:
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z_/.-][\w/.-]*", value):
        return grammar.QuotedString(value, grammar.Quote.single).with_quotes()
    return grammar.Transformer.str(value)


def _score(job: JobReturn) -> tuple[float, str | None]:
    """Return what a job returned, and why it failed; None if it did not."""
    if job.status != JobStatus.COMPLETED:
        return float("nan"), repr(job._return_value)
    try:
        return float(job.return_value), None
    except (TypeError, ValueError):
        return float("nan"), f"it returned {job.return_value!r} and not a number"
