"""F-Meta-KGL: clients select kernels from their own data and a server counts votes (paper, section 5).

| here            | paper                                                                            |
|-----------------|----------------------------------------------------------------------------------|
| `client_step`   | J_hat_s^(client): a group lasso on D^exp_s alone, group norm > omega             |
| `server_vote`   | J_hat_s: kernels that at least alpha * s of the first s clients selected         |
| `alpha`         | alpha, in [0, 1]                                                                 |

A client sends only the set of kernels that it selected. The two steps are separate functions, so a client
can run on another machine.
"""

from typing import Any, ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from jlibo.fields import choice, number
from jlibo.front_door import check_fields
from jlibo.meta.base import AbstractMetaLearner, RunSizes, TaskData, info_of, no_support, selected_prior
from jlibo.meta.exploration import AbstractExploration, ConstantExploration
from jlibo.meta.past import PastTasks, penalised
from jlibo.meta.rows import DATA_CHOICES, Rows, num_rows, rows_of
from jlibo.solver.group_lasso import Solution, group_lasso


def client_step(
    rows: Rows,
    lam: Float[Array, ""],
    omega: Float[Array, ""],
    groups: tuple[int, ...],
    *,
    tol: float = 1e-6,
    max_steps: int = 10_000,
) -> tuple[Bool[Array, " groups"], Solution]:
    """Return a client's selection from its own rows, and the solve that it came from.

    **Arguments:**

    - `rows`: rows of the client's task, from `rows_of`.
    - `lam`: penalty of the group lasso.
    - `omega`: threshold of the group norms.
    - `groups`: group of each feature.
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
    return solution.group_norms > omega, solution


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

    noise_std: ClassVar[None] = None

    def __check_init__(self):
        check_fields(self)

    def init(self, sizes: RunSizes):
        num_rows(self.data, sizes)  # raises an error if the schedule gives no data to learn from
        zeros = jnp.zeros(sizes.num_groups, jnp.int32)
        return Ballot(zeros, jnp.zeros((), jnp.int32), no_support(sizes))

    def prior(self, state, sizes):
        return selected_prior(state.support, sizes)

    def update(self, state, data: TaskData, sizes):
        rows = rows_of(data, self.data, sizes)
        message, solution = client_step(
            rows, self.lam, self.omega, sizes.groups, tol=self.tol, max_steps=self.max_steps
        )
        counts = state.counts + message
        num_clients = state.num_clients + 1
        support = server_vote(counts, num_clients, self.alpha)
        return Ballot(counts, num_clients, support), info_of(support, solution, sizes)

    def learn(self, past: PastTasks, num_done, sizes):
        # Each task is a client here, too: the vote uses only the selections.
        features, targets = penalised(past, sizes)
        rows = Rows(features, targets, past.num_observations)

        def one_client(rows: Rows):
            return client_step(
                rows, self.lam, self.omega, sizes.groups, tol=self.tol, max_steps=self.max_steps
            )

        messages, solutions = jax.vmap(one_client)(rows)
        is_client = jnp.arange(sizes.num_tasks) < num_done
        counts = (messages & is_client[:, None]).sum(0).astype(jnp.int32)
        support = server_vote(counts, num_done, self.alpha)
        # With no client, every count reaches the needed zero votes; `init` has the empty selection.
        support = jnp.where(num_done > 0, support, no_support(sizes))
        last = jax.tree.map(lambda leaf: leaf[jnp.maximum(num_done - 1, 0)], solutions)
        num_clients = jnp.asarray(num_done, jnp.int32)
        return Ballot(counts, num_clients, support), info_of(support, last, sizes)
