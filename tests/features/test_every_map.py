"""What every feature map has in common: shapes, groups, batches, gradients, and points outside of its box."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jlibo.features import AbstractFeatures, check_bounded, normalise
from jlibo.groups import validate_groups
from tests.features.maps import CASES, points_of

every_map = pytest.mark.parametrize("make", CASES.values(), ids=CASES.keys())


@every_map
def test_contract(make):
    features = make()
    assert isinstance(features, AbstractFeatures)
    assert features.dim == len(features.lower) == len(features.upper)
    assert features.num_features == len(features.groups) == sum(features.group_sizes)
    assert features.num_groups == len(features.names) == len(features.group_sizes) == max(features.groups) + 1
    assert validate_groups("groups", features.groups, features.num_features) == features.groups
    assert features.group_ids.dtype == jnp.int32
    assert tuple(features.group_ids.tolist()) == features.groups
    assert len(set(features.names)) == features.num_groups
    assert set(features.free_groups) < set(range(features.num_groups))


@every_map
def test_batches_jit_vmap_and_dtype(make, strict_promotion):
    features = make()
    for enable, dtype in ((False, np.float32), (True, np.float32), (True, np.float64)):
        with jax.enable_x64(enable):
            points = points_of(features).astype(dtype)
            values = np.asarray(features(points))
            assert values.shape == (9, features.num_features) and values.dtype == dtype
            assert np.isfinite(values).all()
    with jax.enable_x64(True):
        close = dict(rtol=0, atol=1e-13)
        np.testing.assert_allclose(features(points[0]), values[0], **close)
        np.testing.assert_allclose(np.asarray(features(points.reshape(3, 3, -1)))[2, 1], values[7], **close)

        @eqx.filter_jit
        def inside_jit(f, x):
            return f(x), jax.vmap(f)(x), f.evaluate(x[3]), f(x[:0])

        batch, mapped, alone, none = inside_jit(features, jnp.asarray(points))
        np.testing.assert_allclose(batch, values, **close)
        np.testing.assert_allclose(mapped, values, **close)
        np.testing.assert_allclose(alone, values[3], **close)
        assert none.shape == (0, features.num_features)


@every_map
def test_equal_maps_are_traced_once(make):
    traces = []

    @jax.jit
    def evaluate(features, points):
        traces.append(1)
        return features(points)

    points = points_of(make())
    evaluate(make(), points)
    evaluate(make(), points[::-1].copy())
    assert len(traces) == 1


@every_map
def test_gradient_equals_finite_differences_inside_and_on_the_boundary(make):
    features = make()
    with jax.enable_x64(True):
        jacobian_of = jax.jit(jax.jacobian(features))
        width = np.subtract(features.upper, features.lower)
        centre = np.asarray(features.lower) + width / 2
        for point in [centre, *points_of(features, num_points=2)]:
            inward = np.where(point > centre, -1.0, 1.0)
            jacobian = np.asarray(jacobian_of(jnp.asarray(point)))
            assert np.isfinite(jacobian).all()
            for k in range(features.dim):
                step = 1e-4 * width[k] * inward[k] * np.eye(features.dim)[k]
                # Second-order one-sided differences never leave the box.
                steps = [np.clip(point + t * step, features.lower, features.upper) for t in (0, 1, 2)]
                at = [np.asarray(features(moved)) for moved in steps]
                slope = (-3 * at[0] + 4 * at[1] - at[2]) / (2 * step[k])
                np.testing.assert_allclose(jacobian[:, k], slope, rtol=1e-3, atol=1e-3 / width[k])


@every_map
def test_points_outside_the_box_raise_or_give_nan(make):
    features = make()
    inside = points_of(features)
    outside = inside.copy()
    outside[4, -1] = features.upper[-1] + 0.01
    with pytest.raises(ValueError, match=r"`points` should be finite and in the box \[.*at \[4\]"):
        features(outside)
    with pytest.raises(ValueError, match=re.escape(f"in the box [{features.lower[0]}, {features.upper[0]}]")):
        features(np.full(features.dim, np.nan))
    jitted = eqx.filter_jit(lambda x: features(x))
    values = np.asarray(jitted(jnp.asarray(outside)))
    assert np.isnan(values[4]).all()
    expected = np.delete(np.asarray(features(inside)), 4, 0)
    np.testing.assert_allclose(np.delete(values, 4, 0), expected, atol=1e-5)
    gradient = np.asarray(jax.jit(jax.grad(lambda x: jnp.sum(features(x))))(jnp.asarray(outside)))
    varies = features.names != ("constant",)
    assert np.isnan(gradient[4]).any() == varies and np.isfinite(np.delete(gradient, 4, 0)).all()
    assert np.isnan(jitted(jnp.asarray(np.full_like(inside, np.inf)))).all()


@pytest.mark.parametrize("name", [name for name in CASES if name != "function"])
def test_built_in_kernels_are_bounded(name):
    features = CASES[name]()
    check_bounded(features, num_points=500, key=jax.random.key(0))
    if name != "scaled":
        scales = normalise(features, num_points=500, key=jax.random.key(0)).scales
        assert (np.asarray(scales) == 1).all()
