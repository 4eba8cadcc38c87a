"""One instance of each policy, a user's policies, and a key, for the tests of policies."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jlibo import (
    GPTS,
    GPUCB,
    OFUL,
    AbstractPolicy,
    ExpectedImprovement,
    Greedy,
    LogExpectedImprovement,
    TheoreticalNu,
    Uniform,
)


class LowerBound(AbstractPolicy):
    """A minimal user-defined policy."""

    width: float
    noise_std: Float[Array, ""] = eqx.field(converter=jnp.asarray, default=0.1)

    def scores(self, belief, *, key):
        return belief.mean - self.width * belief.std


POLICIES = {
    "gp_ucb": GPUCB(2.0, 0.1),
    "gp_ucb_theory": GPUCB(TheoreticalNu(1.5, 0.1, 0.2), 0.1),
    "gp_ts": GPTS(0.1),
    "oful": OFUL(1.5, 0.1, 0.1),
    "greedy": Greedy(0.1),
    "expected_improvement": ExpectedImprovement(0.1),
    "log_expected_improvement": LogExpectedImprovement(0.1),
    "uniform": Uniform(),
    "user": LowerBound(0.5),
}
KEY = jax.random.key(0)
close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12)


class OneScore(AbstractPolicy):
    noise_std: jax.Array

    def scores(self, belief, *, key):
        return belief.mean.sum()
