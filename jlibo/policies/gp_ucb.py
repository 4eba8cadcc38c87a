"""GP-UCB: play where mean + nu * std is highest (Srinivas et al. 2010; paper, App. "Background on GP-UCB").

| here               | paper                                                                      |
|--------------------|----------------------------------------------------------------------------|
| `nu`               | nu_i, the exploration coefficient; 10 in all of the paper's experiments    |
| `noise_std`        | lambda_ucb; 0.1 in all of the paper's experiments                          |
| `norm_bound`       | B, the bound on the RKHS norm of the reward                                |
| `delta`            | delta, the probability that the confidence sets fail                       |
"""

from typing import final

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jlibo.belief.posterior import Belief
from jlibo.fields import number, number_or
from jlibo.policies.base import AbstractPolicy


def kernel_width(
    norm_bound: Float[Array, "*any"],
    noise_level: Float[Array, "*any"],
    gain: Float[Array, "*any"],
    delta: Float[Array, "*any"],
) -> Float[Array, "*any"]:
    """Return `B + sigma sqrt(2 (gain + 1 + ln(1/delta)))` (Chowdhury & Gopalan 2017, Theorem 2).

    It is proved for the regulariser lambda_ucb^2 = 1 + 2 / n.
    """
    return norm_bound + noise_level * jnp.sqrt(2 * (gain + 1 - jnp.log(delta)))


@final
class TheoreticalNu(eqx.Module):
    """The exploration coefficient with a regret guarantee (Chowdhury & Gopalan 2017, Theorem 2).

    `nu_i = B + sigma sqrt(2 (gain_{i-1} + 1 + ln(1/delta)))`, where `gain` is the information gain of the
    points observed so far. It replaces its worst case gamma_{i-1}. The guarantee is proved for a policy with
    `noise_std = sqrt(1 + 2 / n)`; with a much smaller one the bands are too narrow, and `jlibo.OFUL` has a
    width that holds.

    **Arguments:**

    - `norm_bound`: B, the bound on the RKHS norm of the reward, above 0.
    - `delta`: probability that the confidence sets fail, above 0 and at most 1.
    - `noise_level`: sigma, the sub-Gaussian noise level, at least 0.

    **Raises:** `ValueError` for an argument out of range.

    ```python
    import jlibo

    policy = jlibo.GPUCB(jlibo.TheoreticalNu(norm_bound=10.0, delta=0.1, noise_level=0.1), noise_std=0.1)
    ```
    """

    norm_bound: Float[Array, ""] = eqx.field(converter=number("norm_bound", above=0))
    delta: Float[Array, ""] = eqx.field(converter=number("delta", above=0, at_most=1))
    noise_level: Float[Array, ""] = eqx.field(converter=number("noise_level", at_least=0))

    def __call__(self, belief: Belief) -> Float[Array, ""]:
        """Return the coefficient for the next step."""
        gain = belief.posterior.information_gain
        return kernel_width(self.norm_bound, self.noise_level, gain, self.delta)


@final
class GPUCB(AbstractPolicy):
    """Upper confidence bound: scores `mean + nu * std`.

    **Arguments:**

    - `nu`: exploration coefficient, a number >= 0 or a `TheoreticalNu`.
    - `noise_std`: the noise that the posterior assumes, above 0.

    **Raises:** `ValueError` for an argument out of range.

    ```python
    import jax
    import jlibo

    features = jlibo.Cosine(10)
    policy = jlibo.GPUCB(nu=10.0, noise_std=0.1)
    posterior = jlibo.posterior.init(jlibo.full_prior(features.groups), policy.noise_std)
    belief = jlibo.posterior.belief_at(posterior, features(jlibo.box_grid(features, 100)))
    print(jlibo.choose(policy, belief, key=jax.random.key(0)))
    ```
    """

    nu: Float[Array, ""] | TheoreticalNu = eqx.field(converter=number_or("nu", TheoreticalNu, at_least=0))
    noise_std: Float[Array, ""] = eqx.field(converter=number("noise_std", above=0))

    def scores(self, belief, *, key):
        nu = self.nu(belief) if isinstance(self.nu, TheoreticalNu) else self.nu
        return belief.mean + nu * belief.std
