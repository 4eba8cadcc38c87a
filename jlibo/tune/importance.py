"""Which parameters matter: total effects of the parameters on a function of the dictionary. Internal.

The total effect of parameter p is E[(f(x) - f(x'))^2] / 2, where x is uniform over the space and x' equals x
but for parameter p, which is drawn anew (Jansen's estimator of Sobol's total index, without the division by
the variance). It contains the main effect of p and all its interactions, whichever group of features
represents them. For f = phi . w it is the quadratic form w^T D_p w.

With conditions, every parameter is drawn, also where it is off: a new value of p changes nothing where p is
off, and a parameter that a new value of its parent turns on has a random value.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jlibo.tune.model import Model

NUM_POINTS = 512


def effect_matrices(model: Model) -> Float[np.ndarray, "parameters features features"]:
    """Return D_p of each parameter, from `NUM_POINTS` points of the space."""
    rng = np.random.default_rng(0)
    points, others = (model.space.sample_all(NUM_POINTS, rng=rng) for _ in range(2))
    num = points.shape[1]
    moved = np.repeat(points[None], num, axis=0)
    moved[np.arange(num), :, np.arange(num)] = others.T
    rows = np.concatenate([points[None], moved]).reshape(-1, num)
    values = np.asarray(model.features(jnp.asarray(rows, jnp.result_type(float))), np.float64)
    values = values.reshape(num + 1, NUM_POINTS, -1)
    changes = values[1:] - values[0]
    return np.matmul(changes.transpose(0, 2, 1), changes) / (2 * NUM_POINTS)


def parameter_names(model: Model) -> tuple[str, ...]:
    """Return the names of the parameters as the dictionary shows them: `log beta` for a log scale."""
    return model.names[1 : 1 + model.space.num_parameters]
