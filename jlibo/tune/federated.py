"""A client of a federated run: votes from the local memory, and the support that the server published.

| here            | paper                                                                               |
|-----------------|-------------------------------------------------------------------------------------|
| `new_votes`     | J_hat_s^(client) of each finished task, from its own data alone                     |
| `publish`       | stores J_hat_s, which the next task of a tuner with `mode="federated"` uses         |

A client is a user of the tuner and an agent that carries messages. The agent needs only the path of the
memory and may be another process. It asks for `new_votes`, sends them, and calls `confirm` with the server's
receipt; votes that are not confirmed are returned again, unchanged. A vote is computed and stored once, so
what was randomised for privacy is never drawn a second time.

The server learns a random id and the indices of kernels. Scores, configurations, names of tasks and names of
parameters stay in the memory.
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jlibo.belief.scaling import Standardise
from jlibo.checks import check_count, check_finite, check_range
from jlibo.federated.messages import MAX_RECEIPTS, Announcement, Receipt, Vote, new_task_id
from jlibo.federated.randomness import flipped
from jlibo.front_door import check_fields, front_door
from jlibo.meta import RunSizes
from jlibo.meta.federated import client_step
from jlibo.meta.past import penalised
from jlibo.meta.rows import Rows
from jlibo.privacy.calibration import LARGEST_EPSILON, flip_probability
from jlibo.solver.group_lasso import lambda_max
from jlibo.tune import arrays, engine
from jlibo.tune.memory import federation
from jlibo.tune.memory.memory import Memory
from jlibo.tune.memory.records import TaskRecord
from jlibo.tune.model import DEFAULT_BUDGET, FederatedMismatch, Model, make_model
from jlibo.tune.space.space import SearchSpace

PART = 64
"""Number of tasks whose votes are computed at once."""

PathOrMemory = str | os.PathLike[str] | Memory


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """How a client computes its votes. All clients of a ballot should have the same.

    **Arguments:**

    - `lam_share`: penalty of the group lasso, as a share of the smallest one that selects nothing.
    - `omega`: a kernel is selected if its group norm exceeds this threshold, in units of the standardised
      scores.
    - `max_selected`: largest number of kernels in a vote; the strongest are kept. At most that of the ballot.
    - `epsilon`: if given, the bits of each vote are randomised for this epsilon (`mechanism="local"` of the
      ballot, which must have the same epsilon and `max_selected`).
    - `sizes`: sizes of the feature dictionary, as those of the `Tuner`; None for its default.

    **Raises:** `ValueError` for a value out of range.

    ```python
    from jlibo.tune import ClientSettings

    settings = ClientSettings(max_selected=5)
    ```
    """

    lam_share: float = 0.2
    omega: float = 0.1
    max_selected: int = 10
    epsilon: float | None = None
    sizes: Mapping[str, Any] | None = None

    def __post_init__(self):
        check_fields(self)
        check_finite("lam_share", self.lam_share)
        check_range("lam_share", self.lam_share, above=0, at_most=1)
        check_finite("omega", self.omega)
        check_range("omega", self.omega, at_least=0)
        check_count("max_selected", self.max_selected)
        if self.epsilon is not None:
            check_range("epsilon", self.epsilon, above=0, at_most=LARGEST_EPSILON)


@front_door
def num_kernels(space: SearchSpace, *, sizes: Mapping[str, Any] | None = None) -> int:
    """Return the number of base kernels of a search space, which is that of the rules of its ballot.

    **Arguments:**

    - `space`: the search space, which is the same for all clients.
    - `sizes`: sizes of the feature dictionary; None for the default of `Tuner(mode="federated")`.

    ```python
    import jlibo

    space = jlibo.SearchSpace(x=jlibo.Float(0, 1), y=jlibo.Float(0, 1))
    print(jlibo.tune.num_kernels(space))  # 4: a constant, x, y, and x with y
    ```
    """
    return make_model(space, mode="federated", sizes=sizes).features.num_groups


@front_door
def new_votes(
    memory: PathOrMemory,
    *,
    settings: ClientSettings = ClientSettings(),  # noqa: B008  (it is immutable)
    limit: int = 100,
) -> list[Vote]:
    """Return the votes that the server has not confirmed, after a vote for each task that has finished since.

    A task is finished when it has as many finished trials as its budget, and two scores. The votes are in the
    memory before this returns, and later calls return the same.

    **Arguments:**

    - `memory`: the path of the client's memory, or an open one.
    - `settings`: how votes are computed. They apply to tasks that have no vote yet.
    - `limit`: largest number of votes to return, oldest first.

    **Raises:** `MemoryFileError` if there is no memory, or it cannot be written.

    ```python
    import jlibo
    from jlibo.tune import new_votes

    space = jlibo.SearchSpace(x=jlibo.Float(0, 1), y=jlibo.Float(0, 1))
    tuner = jlibo.Tuner(space, memory="client.db", mode="federated")
    tuner.optimise(lambda x, y: -((x - 0.3) ** 2), task="iris", budget=8)
    (vote,) = new_votes("client.db")
    assert new_votes("client.db") == [vote]
    ```
    """
    check_count("limit", limit)
    with _opened(memory) as opened:
        with opened.reading() as database:
            tasks = federation.finished_tasks(database, DEFAULT_BUDGET)
        if tasks:
            model = make_model(opened.space, mode="federated", sizes=settings.sizes, keep_programs=True)
            for start in range(0, len(tasks), PART):
                votes = _votes(model, opened, tasks[start : start + PART], settings)
                with opened.writing() as database:
                    federation.add_votes(database, votes)
        with opened.reading() as database:
            return federation.waiting_votes(database, min(limit, MAX_RECEIPTS))


@front_door
def confirm(memory: PathOrMemory, receipt: Receipt) -> None:
    """Note that the server has these votes, so that `new_votes` does not return them again."""
    with _opened(memory) as opened, opened.writing() as database:
        federation.confirm(database, receipt.tasks)


@front_door
def publish(
    memory: PathOrMemory, announcement: Announcement, *, sizes: Mapping[str, Any] | None = None
) -> None:
    """Store what the server announced; the next trial of a tuner with `mode="federated"` uses it.

    **Arguments:**

    - `memory`: the path of the client's memory, or an open one.
    - `announcement`: the message of the server. An older one, with fewer votes, is ignored.
    - `sizes`: sizes of the feature dictionary, as those of the `Tuner`.

    **Raises:** `FederatedMismatch` if the announcement has another number of kernels than the search space.
    """
    with _opened(memory) as opened:
        expected = num_kernels(opened.space, sizes=sizes)
        if announcement.num_kernels != expected:
            raise FederatedMismatch(
                f"the announcement is about {announcement.num_kernels} kernels, but the search space of this "
                f"client has {expected}: all clients and the ballot need the same space."
            )
        with opened.writing() as database:
            last = federation.read_published(database)
            # Messages may overtake each other.
            if last is None or last.num_clients <= announcement.num_clients:
                federation.write_published(database, announcement)


@front_door
def published(memory: PathOrMemory) -> Announcement | None:
    """Return the last announcement that was stored; None before the first."""
    with _opened(memory) as opened:
        return opened.published()


@contextmanager
def _opened(memory: PathOrMemory) -> Iterator[Memory]:
    if isinstance(memory, Memory):
        yield memory
    else:
        with Memory.open_existing(memory) as opened:
            yield opened


def _votes(
    model: Model, memory: Memory, tasks: list[TaskRecord], settings: ClientSettings
) -> dict[int, Vote]:
    """Return the votes of tasks by their ids; tasks with fewer than two scores have none."""
    trials = [trial for task in tasks for trial in memory.trials(task.id)]
    teaching = arrays.scored_trials(tasks, trials)
    found = arrays.past_rows(model.space, tasks, trials, maximise=memory.maximise)
    if found is None:
        return {}
    rows, _ = found
    sizes = model.sizes(*rows.scores.shape)
    selections = np.asarray(
        model.programs.run(
            _selections,
            np.asarray(settings.lam_share, sizes.dtype),
            np.asarray(settings.omega, sizes.dtype),
            model.scaling,
            model.policy.noise_std,
            model.features,
            rows,
            sizes,
            settings.max_selected,
        )
    )
    kept = [task for task in tasks if task.id in teaching]
    return {task.id: _message(selected, settings) for task, selected in zip(kept, selections, strict=False)}


def _message(selected: Bool[np.ndarray, " groups"], settings: ClientSettings) -> Vote:
    if settings.epsilon is not None:
        probability = flip_probability(settings.epsilon, max_selected=settings.max_selected)
        selected = flipped(selected, settings.max_selected, probability)
    vote = Vote(new_task_id(), tuple(np.flatnonzero(selected).tolist()))
    vote.to_bytes()  # raises an error now if it is too long to be sent
    return vote


@eqx.filter_jit
def _selections(
    lam_share: Float[Any, ""],
    omega: Float[Any, ""],
    scaling: Standardise,
    noise_std: Float[Array, ""],
    features: Any,
    rows: arrays.PastRows,
    sizes: RunSizes,
    max_selected: int,
) -> Bool[Array, "tasks groups"]:
    """Return what each task selects from its own data."""
    past, _ = engine.history_of("all", scaling, noise_std, rows.with_features(features), sizes)
    design, targets = penalised(past, sizes)

    def one_task(task: Rows) -> Bool[Array, " groups"]:
        largest = lambda_max(task.features[None], task.targets[None], groups=sizes.groups)
        # That of the padded rows, which are more than the observations.
        lam = lam_share * largest * task.targets.size / jnp.maximum(task.num_observations, 1)
        return client_step(task, lam, omega, sizes.groups, max_selected=max_selected)[0]

    return jax.vmap(one_task)(Rows(design, targets, past.num_observations))
