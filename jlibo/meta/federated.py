"""F-Meta-KGL: each client selects kernels from its own data, a server counts the votes (paper, section 5).

| here            | paper                                                                            |
|-----------------|----------------------------------------------------------------------------------|
| `client_step`   | J_hat_s^(client): a group lasso on D^exp_s alone, group norm > omega             |
| `server_vote`   | J_hat_s: kernels that at least alpha * s of the first s clients selected         |
| `alpha`         | alpha, in [0, 1]                                                                 |

What leaves a client is its index set and nothing else: the two steps are separate functions, and a client
may run anywhere.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jlibo.fields import hyper_parameter
from jlibo.meta.base import AbstractMetaLearner, RunSizes, TaskData, info_of, no_support, selected_prior
from jlibo.meta.exploration import AbstractExploration, ConstantExploration
from jlibo.meta.past import PastTasks, penalised
from jlibo.meta.rows import Rows, check_data_choice, num_rows, rows_of
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
    """A client's selection from its own rows. The first answer is the message; the second stays at home."""
    ratio = rows.num_observations / rows.targets.size
    solution = group_lasso(
        rows.features[None], rows.targets[None], lam * ratio, groups=groups, tol=tol, max_steps=max_steps
    )
    # The gap in the units of eq. (1), as if lam had not been scaled.
    solution = eqx.tree_at(lambda s: s.gap, solution, solution.gap / jnp.maximum(ratio, 1e-30))
    return solution.group_norms > omega, solution


def server_vote(
    counts: Int[Array, " groups"], num_clients: Int[Array, ""], alpha: Float[Array, ""]
) -> Bool[Array, " groups"]:
    """The kernels that at least `alpha * num_clients` clients selected."""
    # A quarter of four clients is one client, also when alpha is a rounded number.
    needed = alpha * num_clients * (1 - 1e-5)
    return counts >= needed


class Ballot(eqx.Module):
    """All that the server knows: how many clients selected each kernel, and how many there were."""

    counts: Int[Array, " groups"]
    num_clients: Int[Array, ""]
    support: Bool[Array, " groups"]


class FederatedMetaKGL(AbstractMetaLearner):
    """F-LiBO's meta-learner: data stay with the clients."""

    lam: Float[Array, ""] = hyper_parameter("lam", at_least=0)
    omega: Float[Array, ""] = hyper_parameter("omega", at_least=0)
    alpha: Float[Array, ""] = hyper_parameter("alpha", at_least=0, at_most=1)
    data: str = eqx.field(static=True, default="exploration", converter=check_data_choice)
    exploration: AbstractExploration = ConstantExploration()
    tol: float = 1e-6
    max_steps: int = 10_000

    def init(self, sizes: RunSizes):
        num_rows(self.data, sizes)
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
        # Each task is a client of its own here too: the vote sees the selections and nothing else.
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
        # As after the last `update`; before any task, the vote is empty.
        support = jnp.where(num_done > 0, support, no_support(sizes))
        last = jax.tree.map(lambda leaf: leaf[jnp.maximum(num_done - 1, 0)], solutions)
        num_clients = jnp.asarray(num_done, jnp.int32)
        return Ballot(counts, num_clients, support), info_of(support, last, sizes)
