"""The noise of past tasks: its level estimated from their rows, and the penalty that exceeds it.

| here               | paper                                                                            |
|--------------------|----------------------------------------------------------------------------------|
| `estimate_noise`   | sigma, which the paper assumes to be known                                       |
| `noise_scale`      | lambda / (4 sigma) at which the noise event of App. D has probability 1 - delta  |
| `mean_squares`     | the diagonal of Phi^T Phi / N, by kernel; z of Prop. 4.3 is its limit            |
| `spread_kappa`     | an upper bound on kappa: a direction spread over s* kernels and all tasks        |

**The estimate.** A task with more observations than features has residuals that no linear function explains.
With fewer, a fit to all features leaves none, but the tasks share a few kernels: features are added greedily,
each the one that explains most in all tasks together (simultaneous orthogonal matching pursuit), and every
task is refitted. After k features, the residual variance per degree of freedom estimates the noise. k has the
largest evidence against noise alone: that of Zellner's g-prior, with g estimated for each k (Liang et al.,
2008), divided by the number of sets of k features. Features are added one by one also within kernels of
several, because any sparse set serves. If no set has 1 / delta times the evidence of noise alone, the noise
is not identified: the rewards cannot be told from noise, and the estimate is their root mean square. A
penalty above that selects nothing, so Meta-KGL keeps all kernels until the data say more.
"""

import math
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jlibo.checks import ArrayLike
from jlibo.meta.base import RunSizes, group_array
from jlibo.meta.past import PastTasks, penalised

HIGHEST = lax.Precision.HIGHEST
NOISE_DELTA = 0.1
"""delta: probability that the noise exceeds the penalty of `lam_scaling="noise"` for some kernel."""
MAX_EXPLAINED = 24
"""Most features that the estimate of the noise adds one by one."""


@final
class NoiseEstimate(eqx.Module):
    """An estimate of the noise; returned by `jlibo.theory.estimate_noise`."""

    noise_std: Float[Array, ""]
    """The estimate of sigma; the root mean square of the targets if it is not identified."""
    freedom: Float[Array, ""]
    """Degrees of freedom of the residuals. The relative error is about 1 / sqrt(2 freedom)."""
    num_explained: Int[Array, ""]
    """Number of features that the residuals are free of, beside those without penalty."""
    is_identified: Bool[Array, ""]
    """Whether some features explain the targets better than noise alone."""


def estimate_noise(past: PastTasks, sizes: RunSizes) -> NoiseEstimate:
    """Return the noise of past tasks; see the module. It is 0 without data.

    **Arguments:**

    - `past`: the finished tasks.
    - `sizes`: sizes of the run.
    """
    features, targets = penalised(past, sizes)
    groups = group_array(sizes)
    num_free = int((np.isin(groups, sizes.free_groups) & ~np.isin(groups, sizes.rest_groups)).sum())
    counts = jnp.maximum(past.num_observations - num_free, 0)
    lost_freedom = jnp.maximum(past.num_observations - sizes.num_features, 0)
    return noise_of_rows(features, targets, counts, past.lost_products[:, 0, 0], lost_freedom)


def noise_of_rows(
    features: Float[Array, "tasks rows features"],
    targets: Float[Array, "tasks rows"],
    counts: Float[Array, " tasks"],
    lost: Float[Array, " tasks"],
    lost_freedom: Float[Array, " tasks"],
) -> NoiseEstimate:
    """Return the noise of tasks given as rows, compressed or not.

    **Arguments:**

    - `features`, `targets`: rows of each task; rows of zeros are padding.
    - `counts`: number of observations that the rows represent, less the features projected out before.
    - `lost`: squares of the targets that compression removed, which no feature explains.
    - `lost_freedom`: their degrees of freedom.
    """
    num_rows, num_features = features.shape[1:]
    num_steps = min(num_rows, num_features, MAX_EXPLAINED)
    # A feature that is a combination of chosen ones has only round-off left.
    floor = (1e3 * jnp.finfo(features.dtype).eps) ** 2 * (features**2).sum(1)

    def add(state, _):
        residuals, freedom, is_chosen = state
        squares = (residuals[..., :-1] ** 2).sum(1)
        usable = (squares > floor) & (freedom > 0.5)[:, None]
        products = jnp.einsum("trf,tr->tf", residuals[..., :-1], residuals[..., -1], precision=HIGHEST)
        gains = jnp.where(usable, products**2 / jnp.where(usable, squares, 1), 0).sum(0)
        best = jnp.argmax(jnp.where(is_chosen, -1, gains))
        column, used = residuals[..., best], usable[:, best]
        share = jnp.einsum("tr,trf->tf", column, residuals, precision=HIGHEST)
        share = jnp.where(used, 1 / jnp.where(used, squares[:, best], 1), 0)[:, None] * share
        residuals = residuals - column[..., None] * share[:, None, :]
        freedom = freedom - used
        # A task without degrees of freedom is fitted exactly.
        residuals = jnp.where((freedom > 0.5)[:, None, None], residuals, 0)
        state = residuals, freedom, is_chosen.at[best].set(True)
        return state, ((residuals[..., -1] ** 2).sum(), freedom.sum())

    start = jnp.concatenate([features, targets[..., None]], axis=-1)
    _, (left, freedom) = lax.scan(add, (start, counts, jnp.zeros(num_features, bool)), None, length=num_steps)
    total = (targets**2).sum() + lost.sum()
    # The last model has all features: what compression removed, which exists with more rows than features.
    left = jnp.concatenate([left + lost.sum(), lost.sum()[None]])
    freedom = jnp.concatenate([freedom, lost_freedom.sum()[None]])
    explained = np.r_[np.arange(1, num_steps + 1), num_features]
    evidence = _evidence(left, freedom, total, counts.sum(), explained, num_features)
    best = jnp.argmax(evidence)
    is_identified = evidence[best] > math.log(1 / NOISE_DELTA)
    freedom = jnp.where(is_identified, freedom[best], counts.sum())
    squares = jnp.where(is_identified, left[best], total)
    return NoiseEstimate(
        jnp.sqrt(squares / jnp.maximum(freedom, 1)),
        freedom,
        jnp.where(is_identified, jnp.asarray(explained)[best], 0),
        is_identified,
    )


def _evidence(
    left: Float[Array, " models"],
    freedom: Float[Array, " models"],
    total: Float[Array, ""],
    count: Float[Array, ""],
    explained: np.ndarray,
    num_features: int,
) -> Float[Array, " models"]:
    """Return the log evidence of each model against noise alone; -inf without degrees of freedom."""
    info = jnp.finfo(left.dtype)
    share = jnp.maximum(left / jnp.maximum(total, info.tiny), info.eps**2)  # 1 - R^2
    used = count - freedom
    possible = (freedom > 0.5) & (used > 0.5) & (total > 0)
    ratio = (1 - share) / jnp.where(possible, used, 1) * freedom / share  # the F statistic
    g = jnp.maximum(ratio - 1, 0)
    gain = freedom / 2 * jnp.log1p(g) - count / 2 * jnp.log1p(g * share)
    return jnp.where(possible, gain - _log_binomial(num_features, explained), -jnp.inf)


def _log_binomial(count: int, chosen: np.ndarray) -> np.ndarray:
    return np.asarray(
        [math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) for k in chosen]
    )


def noise_scale(past: PastTasks, sizes: RunSizes) -> Float[Array, ""]:
    """Return the smallest lam / (4 sigma) at which App. D bounds noise of level sigma below the penalty.

    That is `max_j (sqrt(T_j) + sqrt(2 t_j log(p / delta))) / N`, where T_j is the trace of the features of
    kernel j over all tasks and t_j the largest trace of a task, which bounds the spectral norm. It needs
    neither c_1 nor kappa. It is 0 without data.
    """
    traces = _traces(past, sizes)
    log_term = np.log(sizes.num_groups / NOISE_DELTA)
    spread = jnp.sqrt(traces.sum(1)) + jnp.sqrt(2 * log_term * traces.max(1))
    return spread.max() / jnp.maximum(past.num_observations.sum(), 1)


def reward_scale(past: PastTasks, sizes: RunSizes) -> Float[Array, ""]:
    """Return the root mean square of the past rewards, less what free groups explain; 0 without data."""
    _, targets = penalised(past, sizes)
    squares = (targets**2).sum() + past.lost_products[:, 0, 0].sum()
    return jnp.sqrt(squares / jnp.maximum(past.num_observations.sum(), 1))


def mean_squares(past: PastTasks, sizes: RunSizes) -> Float[Array, " groups"]:
    """Return the mean square of a feature of each kernel over all observations; 0 without data."""
    widths = np.bincount(group_array(sizes), minlength=sizes.num_groups)
    return _traces(past, sizes).sum(1) / (widths * jnp.maximum(past.num_observations.sum(), 1))


def spread_kappa(
    squares: Float[Array, " groups"], support_size: Float[ArrayLike, ""] | Int[ArrayLike, ""]
) -> Float[Array, ""]:
    """Return an upper bound on kappa: `sqrt(z / s*)`, with z the mean of the s* smallest mean squares.

    Take b with one unit vector in each of s* kernels, equal in all tasks. Averaged over the signs and over
    the features of a kernel, ||Phi b||^2 / N is the sum of the mean squares, so some b is not above it.

    **Arguments:**

    - `squares`: mean square of a feature of each kernel.
    - `support_size`: s*, at least 1. It may be traced.
    """
    size = jnp.asarray(support_size)
    smallest = jnp.where(jnp.arange(squares.shape[0]) < size, jnp.sort(squares), 0)
    return jnp.sqrt(smallest.sum()) / size


def _traces(past: PastTasks, sizes: RunSizes) -> Float[Array, "groups tasks"]:
    features, _ = penalised(past, sizes)
    by_feature = (features**2).sum(1)
    return jax.ops.segment_sum(by_feature.T, group_array(sizes), num_segments=sizes.num_groups)
