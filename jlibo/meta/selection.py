"""lam and omega without a simulation: kernels chosen by how well they foretell the past tasks' own rewards.

Outside of a simulation nobody knows c_1, B or the noise that the theory's lam and omega are made of. The
group-lasso path offers one selection for every lam, and a threshold on each more; `choose_support` takes the
one under whose kernel the past rewards are likeliest. That likelihood is a product over rewards, each
foretold from those before it in its task: every row is held out once.

| here                | paper                                                                      |
|---------------------|----------------------------------------------------------------------------|
| `choose_support`    | J_hat_s, with lambda and omega of eq. (1) taken from a grid by the data    |
| `SelfTunedMetaKGL`  | Meta-KGL with that choice after every task                                 |
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jlibo.belief.posterior import init, update
from jlibo.fields import hyper_parameter
from jlibo.meta.base import (
    AbstractMetaLearner,
    RunSizes,
    TaskData,
    free_mask,
    info_of,
    no_support,
    selected_prior,
)
from jlibo.meta.exploration import AbstractExploration, DecreasingExploration
from jlibo.meta.past import PastTasks, no_past, penalised, remember
from jlibo.meta.rows import check_data_choice
from jlibo.solver.group_lasso import Solution, group_lasso_path, lam_grid, lambda_max


def choose_support(
    past: PastTasks,
    noise_std: Float[Array, ""],
    sizes: RunSizes,
    *,
    num_lams: int,
    tol: float,
    max_steps: int,
) -> tuple[Bool[Array, " groups"], Solution]:
    """Return the kernels along the group-lasso path under which the past rewards are likeliest.

    Candidates are the whole set and, for every lam of the path below `lambda_max`, the kernels with a
    non-zero norm and those with more than a tenth of the largest norm: so lam and omega are both chosen.
    The whole set wins a tie.

    **Returns:** the support without the free groups, and the solve that it came from, whose status, gap and
    number of steps certify it. At `lambda_max`, where the path starts, the solution is zero, and the kernel
    of an empty selection is that of the whole set: the whole set has the certificate of this solve.
    """
    features, targets = penalised(past, sizes)
    largest = lambda_max(features, targets, groups=sizes.groups)
    lams = lam_grid(jnp.maximum(largest, jnp.finfo(sizes.dtype).tiny), num_lams=num_lams, smallest_ratio=1e-2)
    path = group_lasso_path(features, targets, lams, groups=sizes.groups, tol=tol, max_steps=max_steps)
    whole = jnp.ones((1, sizes.num_groups), bool)
    norms = path.group_norms[1:]
    candidates = jnp.concatenate([whole, norms > 0, norms > 0.1 * norms.max(1, keepdims=True)])
    solve_of = jnp.asarray(np.r_[0, 1:num_lams, 1:num_lams])

    def log_likelihood(support):
        prior = selected_prior(support, sizes)
        start = init(prior, noise_std)

        def one_task(rows, values):
            def add(posterior, row):
                return update(posterior, *row), None

            posterior, _ = jax.lax.scan(add, start, (rows, values))
            return posterior.log_marginal_likelihood

        return (jax.vmap(one_task)(past.features, past.targets) * past.is_done).sum()

    # One after another: as a batch they would take the memory of all at once and no less time.
    scores = jax.lax.map(log_likelihood, candidates)
    best = jnp.argmax(scores)
    solution = jax.tree.map(lambda leaf: leaf[solve_of[best]], path)
    return candidates[best] & ~free_mask(sizes), solution


class SelfTunedState(eqx.Module):
    past: PastTasks
    num_done: Int[Array, ""]
    support: Bool[Array, " groups"]


class SelfTunedMetaKGL(AbstractMetaLearner):
    """Meta-KGL for who knows neither lam nor omega: mean zero, equal weights, forced exploration.

    Rewards should be standardised (`jlibo.Standardise`): the likelihood is that of functions of size one.
    """

    noise_std: Float[Array, ""] = hyper_parameter("noise_std", above=0, default=0.1)
    data: str = eqx.field(static=True, default="exploration", converter=check_data_choice)
    num_lams: int = eqx.field(static=True, default=8)
    exploration: AbstractExploration = DecreasingExploration()
    tol: float = 1e-3
    max_steps: int = 300

    def init(self, sizes):
        return SelfTunedState(no_past(self.data, sizes), jnp.zeros((), jnp.int32), no_support(sizes))

    def prior(self, state, sizes):
        return selected_prior(state.support, sizes)

    def update(self, state, data: TaskData, sizes):
        past = remember(state.past, state.num_done, data, self.data, sizes)
        return self.learn(past, state.num_done + 1, sizes)

    def learn(self, past: PastTasks, num_done, sizes):
        support, solution = choose_support(
            past,
            self.noise_std.astype(sizes.dtype),
            sizes,
            num_lams=self.num_lams,
            tol=self.tol,
            max_steps=self.max_steps,
        )
        return SelfTunedState(past, num_done, support), info_of(support, solution, sizes)
