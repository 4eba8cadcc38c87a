"""F-Meta-KGL: clients select kernels from their own data and a server counts votes (paper, section 5).

| here            | paper                                                                            |
|-----------------|----------------------------------------------------------------------------------|
| `client_step`   | J_hat_s^(client): a group lasso on D^exp_s alone, group norm > omega             |
| `server_vote`   | J_hat_s: kernels that at least alpha * s of the first s clients selected         |
| `alpha`         | alpha, in [0, 1]                                                                 |
| `mechanism`     | the paper counts exactly; see `jlibo.privacy` for votes with differential privacy |

A client sends only the set of kernels that it selected. The two steps are separate functions, so a client
can run on another machine.
"""

from typing import Any, ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray

from jlibo.checks import fail
from jlibo.fields import choice, number, size
from jlibo.front_door import check_fields
from jlibo.meta.base import AbstractMetaLearner, RunSizes, TaskData, info_of, no_support, selected_prior
from jlibo.meta.exploration import AbstractExploration, ConstantExploration
from jlibo.meta.past import PastTasks, penalised
from jlibo.meta.rows import DATA_CHOICES, Rows, num_rows, rows_of
from jlibo.privacy.mechanisms import AbstractMechanism, NoPrivacy
from jlibo.solver.group_lasso import Solution, group_lasso


def client_step(
    rows: Rows,
    lam: Float[Array, ""],
    omega: Float[Array, ""],
    groups: tuple[int, ...],
    *,
    max_selected: int | None = None,
    tol: float = 1e-6,
    max_steps: int = 10_000,
) -> tuple[Bool[Array, " groups"], Solution]:
    """Return a client's selection from its own rows, and the solve that it came from.

    **Arguments:**

    - `rows`: rows of the client's task, from `rows_of`.
    - `lam`: penalty of the group lasso.
    - `omega`: threshold of the group norms.
    - `groups`: group of each feature.
    - `max_selected`: largest number of selected groups; those with the largest norms are kept.
    - `tol`, `max_steps`: as in `group_lasso`.

    **Returns:** the selected groups, which are the message to the server, and the `Solution`, which stays
    with the client.
    """
    ratio = rows.num_observations / rows.targets.size
    solution = group_lasso(
        rows.features[None], rows.targets[None], lam * ratio, groups=groups, tol=tol, max_steps=max_steps
    )
    # Compressed rows make the number of rows differ from N, so lam was scaled. Report the gap of eq. (1).
    solution = eqx.tree_at(lambda s: s.gap, solution, solution.gap / jnp.maximum(ratio, 1e-30))
    return strongest(solution.group_norms, solution.group_norms > omega, max_selected), solution


def strongest(
    group_norms: Float[Array, " groups"], selected: Bool[Array, " groups"], max_selected: int | None
) -> Bool[Array, " groups"]:
    """Return those `max_selected` of the selected groups that have the largest norms; None keeps all."""
    if max_selected is None or max_selected >= len(group_norms):
        return selected
    norms = jnp.where(selected, group_norms, -1)
    # A rank and not a threshold: of equal norms only as many are kept as are allowed.
    rank = (
        jnp.zeros(len(norms), jnp.int32).at[jnp.argsort(-norms)].set(jnp.arange(len(norms), dtype=jnp.int32))
    )
    return selected & (rank < max_selected)


def server_vote(
    counts: Num[Any, " groups"], num_clients: Int[Any, ""], alpha: Float[Any, ""]
) -> Bool[Any, " groups"]:
    """Return the kernels that at least `alpha * num_clients` clients selected.

    **Arguments:**

    - `counts`: number of clients that selected each kernel, or an estimate of it. An array of NumPy or jax.
    - `num_clients`: number of clients that voted.
    - `alpha`: share of clients that is needed, from 0 to 1.
    """
    # Tolerates rounding of alpha: a quarter of four clients must be one client.
    needed = alpha * num_clients * (1 - 1e-5)
    return counts >= needed


@final
class Ballot(eqx.Module):
    """State of `FederatedMetaKGL`, which is all that the server stores."""

    counts: Int[Array, " groups"]
    """Number of clients that selected each kernel."""
    num_clients: Int[Array, ""]
    """Number of clients that voted."""
    support: Bool[Array, " groups"]
    """Result of the vote."""
    mechanism: Any = ()
    """State of the mechanism that makes the vote private."""


@final
class FederatedMetaKGL(AbstractMetaLearner):
    """Meta-learner of F-LiBO: each task is a client whose data stay local; a server counts votes.

    **Arguments:** the fields below; `lam`, `omega` and `alpha` are required.

    **Raises:** `ValueError` for a hyper-parameter out of range or an unknown `data`.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy = jlibo.GPUCB(nu=10.0, noise_std=0.1)
    learner = jlibo.FederatedMetaKGL(lam=0.1, omega=0.25, alpha=0.5)
    result = jlibo.run_lifelong(env, features, policy, learner, num_tasks=3, horizon=16, key=key)
    print(result.support)
    ```
    """

    lam: Float[Array, ""] = eqx.field(converter=number("lam", at_least=0))
    """Penalty lambda of each client's group lasso, at least 0."""
    omega: Float[Array, ""] = eqx.field(converter=number("omega", at_least=0))
    """A client selects a kernel if its group norm exceeds this threshold. At least 0."""
    alpha: Float[Array, ""] = eqx.field(converter=number("alpha", at_least=0, at_most=1))
    """Share of the clients that must select a kernel, from 0 to 1."""
    data: str = choice("data", DATA_CHOICES)
    """Which steps of a task to use: "exploration" (forced exploration only) or "all"."""
    exploration: AbstractExploration = ConstantExploration()
    """Default schedule of forced exploration."""
    tol: float = 1e-6
    """Relative duality gap at which the group lasso stops."""
    max_steps: int = 10_000
    """Maximum number of steps of each solve."""
    mechanism: AbstractMechanism = NoPrivacy()
    """How the vote is made private; `NoPrivacy()` counts exactly."""
    num_votes: int | None = size("num_votes", None)
    """Number of votes after which the support does not change any more, for which the noise is calibrated.
    None for the number of tasks of the run."""

    noise_std: ClassVar[None] = None

    def __check_init__(self):
        check_fields(self)

    def init(self, sizes: RunSizes):
        num_rows(self.data, sizes)  # raises an error if the schedule gives no data to learn from
        zeros = jnp.zeros(sizes.num_groups, jnp.int32)
        noise = self.mechanism.init(sizes.num_groups, self._horizon(sizes), sizes.dtype)
        return Ballot(zeros, jnp.zeros((), jnp.int32), no_support(sizes), noise)

    def prior(self, state, sizes):
        return selected_prior(state.support, sizes)

    def update(self, state, data: TaskData, sizes):
        selected, solution = self._select(rows_of(data, self.data, sizes), sizes)
        state = self._count(state, selected, data.key, sizes)
        return state, info_of(state.support, solution, sizes)

    def learn(self, past: PastTasks, num_done, sizes):
        # Each task is a client here, too: the vote uses only the selections.
        features, targets = penalised(past, sizes)
        rows = Rows(features, targets, past.num_observations)
        selections, solutions = jax.vmap(lambda rows: self._select(rows, sizes))(rows)

        def one_client(state, client):
            number, selected, key = client
            after = self._count(state, selected, key, sizes)
            return jax.tree.map(lambda new, old: jnp.where(number < num_done, new, old), after, state), None

        clients = (jnp.arange(sizes.num_tasks), selections, past.keys)
        state, _ = jax.lax.scan(one_client, self.init(sizes), clients)
        last = jax.tree.map(lambda leaf: leaf[jnp.maximum(num_done - 1, 0)], solutions)
        return state, info_of(state.support, last, sizes)

    def _select(self, rows: Rows, sizes: RunSizes) -> tuple[Bool[Array, " groups"], Solution]:
        return client_step(
            rows,
            self.lam,
            self.omega,
            sizes.groups,
            max_selected=self.mechanism.max_selected,
            tol=self.tol,
            max_steps=self.max_steps,
        )

    def _count(
        self, state: Ballot, selected: Bool[Array, " groups"], key: PRNGKeyArray | None, sizes: RunSizes
    ) -> Ballot:
        """Return the ballot after one more client, unless it is closed."""
        client_key = server_key = None
        if self.mechanism.is_random:
            if key is None:
                fail("data.key", f"a random key, which {type(self.mechanism).__name__} needs", None)
            client_key, server_key = jax.random.split(key)
        counts = state.counts + self.mechanism.message(selected, key=client_key)
        num_clients = state.num_clients + 1
        noise, released = self.mechanism.release(state.mechanism, counts, num_clients, key=server_key)
        after = Ballot(counts, num_clients, server_vote(released, num_clients, self.alpha), noise)
        if self._horizon(sizes) >= sizes.num_tasks:
            return after
        is_open = state.num_clients < self._horizon(sizes)
        return jax.tree.map(lambda new, old: jnp.where(is_open, new, old), after, state)

    def _horizon(self, sizes: RunSizes) -> int:
        return sizes.num_tasks if self.num_votes is None else self.num_votes
