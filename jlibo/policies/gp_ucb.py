"""GP-UCB: play where mean + nu * std is highest (Srinivas et al. 2010; paper, App. "Background on GP-UCB").

| here               | paper                                                                      |
|--------------------|----------------------------------------------------------------------------|
| `nu`               | nu_i, the exploration coefficient; 10 in all of the paper's experiments    |
| `noise_std`        | lambda_ucb; 0.1 in all of the paper's experiments                          |
| `norm_bound`       | B, the bound on the RKHS norm of the reward                                |
| `delta`            | delta, the probability that the confidence sets fail                       |
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jlibo.belief.posterior import Belief
from jlibo.fields import as_hyper_parameter, hyper_parameter
from jlibo.policies.base import AbstractPolicy


class TheoreticalNu(eqx.Module):
    """The exploration coefficient with a guarantee (Chowdhury & Gopalan 2017, Theorem 2).

    nu_i = B + sigma sqrt(2 (gain_{i-1} + 1 + ln(1/delta))), sigma the sub-Gaussian noise level and gain the
    information gained by the points played so far, which takes the place of its worst case gamma_{i-1}.
    """

    norm_bound: Float[Array, ""] = hyper_parameter("norm_bound", above=0)
    delta: Float[Array, ""] = hyper_parameter("delta", above=0, at_most=1)
    noise_level: Float[Array, ""] = hyper_parameter("noise_level", at_least=0)

    def __call__(self, belief: Belief) -> Float[Array, ""]:
        gain = belief.posterior.information_gain
        return self.norm_bound + self.noise_level * jnp.sqrt(2 * (gain + 1 - jnp.log(self.delta)))


def _coefficient(value):
    return value if isinstance(value, TheoreticalNu) else as_hyper_parameter("nu", value, at_least=0)


class GPUCB(AbstractPolicy):
    """Upper confidence bound, with a constant `nu` or a `TheoreticalNu`."""

    nu: Float[Array, ""] | TheoreticalNu = eqx.field(converter=_coefficient)
    noise_std: Float[Array, ""] = hyper_parameter("noise_std", above=0)

    def scores(self, belief, *, key):
        nu = self.nu(belief) if isinstance(self.nu, TheoreticalNu) else self.nu
        return belief.mean + nu * belief.std
