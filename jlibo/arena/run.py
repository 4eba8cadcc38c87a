"""Runs of the arena: every method on every environment, all seeds as one batch, with the same draws.

Environment, weights, action sets and noise of a seed are the same for all methods: functions of the seed, the
task and the step. A method sees the facts on its card only.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jlibo.arena.cards import facts_of
from jlibo.arena.environment import Environment
from jlibo.arena.method import Method, SequentialAgent
from jlibo.arena.registry import METHODS
from jlibo.arena.result import ArenaResult, Cell
from jlibo.arena.rounds import run_rounds, sizes_of
from jlibo.arena.schedule import Schedule
from jlibo.checks import check_count, fail
from jlibo.envs.linear.base import LinearEnv
from jlibo.front_door import front_door
from jlibo.lifelong.linear import play_linear_tasks
from jlibo.lifelong.play import AgentPlan, RunSpec, start_agents
from jlibo.meta.base import RunSizes, check_run_noise
from jlibo.sweeps.engines import usual_threads
from jlibo.sweeps.progress import ProgressFn
from jlibo.sweeps.run import sweep

ORACLE = "oracle"
"""The method that all others are compared with."""


@front_door
def run_method(
    environment: Environment, method: Method, *, key: PRNGKeyArray
) -> Float[Array, "tasks horizon"]:
    """Return the regret of every step of one run of a method on an environment.

    Use `jax.vmap` over `key` to run many seeds as one batch.

    **Arguments:**

    - `environment`: the environment.
    - `method`: the method; it must not refuse the environment.
    - `key`: random key of the seed.

    **Raises:** `ValueError` if the method does not run on the environment.

    ```python
    import jax
    from jlibo.arena import ENVIRONMENTS, METHODS, run_method

    small = ENVIRONMENTS["gaussian-arms"].sized(num_tasks=2, horizon=10)
    print(run_method(small, METHODS["oracle"], key=jax.random.key(0)).shape)  # (2, 10)
    ```
    """
    refusal = method.refusal(environment)
    if refusal is not None:
        fail("method", f"one that runs on {environment.name}", f"{method.name}, which does not: {refusal}")
    key_env, key_run = jax.random.split(key)
    env = environment.draw(key_env)
    schedule = getattr(Schedule, method.setting)(environment.num_tasks, environment.horizon)
    sizes = sizes_of(env, schedule)
    agent = method.make(env.facts.only(facts_of(method.card)), sizes)
    if isinstance(agent, SequentialAgent):
        if method.setting != "sequential":
            fail("setting", "sequential for a SequentialAgent", method.setting)
        return _play_sequence(env, agent, sizes, key_run)
    return schedule.by_task(run_rounds(env, agent, schedule, sizes, key=key_run).regret)


def _play_sequence(env: LinearEnv, agent: SequentialAgent, sizes: RunSizes, key: PRNGKeyArray) -> Array:
    name, learner = "agent", agent.meta_learner
    exploration = learner.exploration if agent.exploration is None else agent.exploration
    counts = exploration.counts(sizes.num_tasks, sizes.horizon)[:, None]
    schedule = Schedule.sequential(sizes.num_tasks, sizes.horizon)
    plan = AgentPlan({name: sizes_of(env, schedule, max_explore=int(counts.max(initial=0)))}, counts)
    check_run_noise(agent.policy.noise_std, learner, plan.sizes[name])
    learners = {name: learner}
    spec = RunSpec.of(env, None, agent.policy, learners, plan.sizes, scaling=agent.scaling)
    states = start_agents(learners, plan, agent.scaling)
    indices = jnp.arange(sizes.num_tasks)
    return play_linear_tasks(spec, states, indices, jnp.asarray(counts), key=key)[name].regret


@front_door
def run_arena(
    methods: Sequence[Method],
    environments: Sequence[Environment],
    *,
    num_seeds: int = 20,
    first_seed: int = 0,
    num_threads: int | None = None,
    out: str | Path | None = None,
    progress_fn: ProgressFn | None = None,
) -> ArenaResult:
    """Run every method on every environment, on several seeds.

    The oracles of the methods are run too, as results are relative to them.

    **Arguments:**

    - `methods`: methods, such as `METHODS["libo"]`.
    - `environments`: environments, such as `ENVIRONMENTS["sparse-grid"]`.
    - `num_seeds`, `first_seed`: seeds are `first_seed`, `first_seed + 1`, ....
    - `num_threads`: number of batches of seeds that run at a time; by default the number of cores on a CPU.
    - `out`: folder in which every finished batch of seeds is kept, in one folder for each method and
      environment. The same call resumes an interrupted run.
    - `progress_fn`: called with the share of runs done (0 to 1) and what is run.

    **Returns:** an `ArenaResult`.

    **Raises:** `ValueError` for an invalid argument. With `out`, those of `jlibo.sweep`.

    ```python
    from jlibo.arena import ENVIRONMENTS, METHODS, run_arena

    small = ENVIRONMENTS["gaussian-arms"].sized(num_tasks=2, horizon=10)
    result = run_arena([METHODS["independent"]], [small], num_seeds=2)
    print(result.table())
    ```
    """
    check_count("num_seeds", num_seeds)
    check_count("first_seed", first_seed, at_least=0)
    for argument, given in (("methods", methods), ("environments", environments)):
        if len({one.name for one in given}) < len(given) or not given:
            fail(argument, "at least one, with different names", [one.name for one in given])
    wanted = {method.name: method for method in methods}
    oracles = {name: METHODS[name] for method in methods for name in (ORACLE, method.oracle)}
    played = {**oracles, **wanted}
    cells: dict[tuple[str, str], Cell] = {}
    threads = usual_threads() if num_threads is None else num_threads
    check_count("num_threads", threads)
    total, seeds = len(played) * len(environments), (first_seed, first_seed + num_seeds - 1)
    for environment in environments:
        for method in played.values():
            if progress_fn is not None:
                progress_fn(len(cells) / total, f"{method.name} on {environment.name}")
            folder = None if out is None else Path(out) / _folder_name(environment, method, seeds)
            cells[method.name, environment.name] = _cell(
                environment, method, num_seeds, first_seed, threads, folder
            )
    if progress_fn is not None:
        progress_fn(1.0, "done")
    return ArenaResult(tuple(played.values()), tuple(environments), num_seeds, first_seed, cells)


def _folder_name(environment: Environment, method: Method, seeds: tuple[int, int]) -> str:
    """Return the folder of a cell. Runs of other sizes or seeds have other folders."""
    sizes = f"{environment.num_tasks}x{environment.horizon}"
    return f"{environment.name}-{sizes}/{method.name}-seeds-{seeds[0]}-{seeds[1]}"


def _cell(
    environment: Environment,
    method: Method,
    num_seeds: int,
    first_seed: int,
    num_threads: int,
    folder: Path | None,
) -> Cell:
    refusal = method.refusal(environment)
    if refusal is not None:
        return Cell(None, refusal, 0.0)

    def run_fn(*, key):
        return {"regret": run_method(environment, method, key=key)}

    begin = time.perf_counter()
    result = sweep(
        run_fn,
        num_seeds=num_seeds,
        first_seed=first_seed,
        chunk=-(-num_seeds // num_threads),
        devices=1,
        num_threads=num_threads if jax.default_backend() == "cpu" else 1,
        dims={"regret": ("task", "step")},
        out=folder,
        key=jax.random.key(0),
    )
    return Cell(np.asarray(result["regret"], np.float64), None, time.perf_counter() - begin)
