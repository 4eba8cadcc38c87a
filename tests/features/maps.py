"""One instance of each feature map, for the tests of all maps."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jlibo.features import (
    Concatenate,
    Cosine,
    Fourier,
    FunctionFeatures,
    Legendre,
    Polynomial,
    Scaled,
    Unpenalised,
)
from jlibo.tune import Categorical, Float, SearchSpace


def steep(point):
    """A user's map that breaks the bound: group 0 up to 1, group 1 up to 9 + 4 at the corner (1, 2)."""
    return jnp.stack([jnp.cos(point[0]), 3 * point[0], point[1]])


class Network(eqx.Module):
    weights: jax.Array
    activation: object = jnp.tanh

    def __call__(self, point):
        return self.activation(self.weights.astype(point.dtype) @ point) / 2


BOX = dict(lower=(-1.0, 0.5), upper=(2.0, 0.75))
CASES = {
    "cosine": lambda: Cosine(12),
    "cosine_2d": lambda: Cosine(11, dim=2, constant=True, **BOX),
    "cosine_grid": lambda: Cosine.grid(3, dim=2, **BOX),
    "legendre": lambda: Legendre(9),
    "legendre_2d": lambda: Legendre(8, dim=2, constant=True, **BOX),
    "legendre_constant": lambda: Legendre(1, constant=True),
    "fourier": lambda: Fourier(4, lower=2.0, upper=5.0),
    "fourier_2d": lambda: Fourier(7, dim=2, constant=True, **BOX),
    "polynomial": lambda: Polynomial(4, dim=3, constant=True),
    "polynomial_variables": lambda: Polynomial(4, dim=3, max_interaction=2, group_by="variables"),
    "concatenate": lambda: Concatenate(Cosine(3, dim=2, **BOX), Fourier(2, dim=2, **BOX)),
    "scaled": lambda: Scaled(Fourier(2, dim=2, **BOX), np.array([0.5, -1.0])),
    "unpenalised": lambda: Unpenalised(Fourier(2, dim=2, constant=True, **BOX), ["constant"]),
    "function": lambda: FunctionFeatures(steep, groups=[0, 1, 1], lower=(0, 0), upper=(1, 2)),
    "search_space": lambda: SearchSpace(
        a=Float(1e-3, 1, log=True), b=Categorical(["x", "y", "z"])
    ).features(),
    "network": lambda: FunctionFeatures(Network(jnp.eye(2)), groups=[0, 1], **BOX),
}


def points_of(features, num_points=7, seed=0):
    """Random points of the box and its lower and upper corners, as float64 NumPy arrays."""
    inner = np.random.default_rng(seed).uniform(features.lower, features.upper, (num_points, features.dim))
    return np.concatenate([inner, [features.lower, features.upper]])
