"""Feature maps: values against independent formulas, orders, names, bounds, and bad input."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import eval_legendre, roots_legendre

from jlibo.features import (
    Concatenate,
    Cosine,
    Fourier,
    FunctionFeatures,
    Legendre,
    Polynomial,
    Scaled,
    box_grid,
    check_bounded,
    max_kernel_diagonal,
    normalise,
    sample_box,
)
from jlibo.groups import validate_groups
from tests.features.maps import BOX, CASES, Network, steep

# --- values, orders and names ---


def test_cosine_values_and_names():
    x = np.linspace(0, 1, 1000)
    with jax.enable_x64(True):
        values = Cosine()(x[:, None])
    np.testing.assert_allclose(values, np.cos(np.pi * np.outer(x, np.arange(1, 51))), atol=1e-12)
    assert Cosine(3).names == ("cos(pi x1)", "cos(2 pi x1)", "cos(3 pi x1)")
    assert Cosine(5, dim=2).names[3:] == ("cos(pi x1) cos(3 pi x2)", "cos(2 pi x1) cos(2 pi x2)")


def test_cosine_order_in_two_dimensions():
    assert Cosine(7, dim=2).frequencies == ((1, 1), (1, 2), (2, 1), (1, 3), (2, 2), (3, 1), (1, 4))
    with_constant = Cosine(5, dim=2, constant=True)
    assert with_constant.frequencies == ((0, 0), (0, 1), (1, 0), (0, 2), (1, 1))
    assert with_constant.names[:2] == ("constant", "cos(pi x2)")
    point = np.array([0.3, 0.8])
    with jax.enable_x64(True):
        expected = [
            np.cos(i * np.pi * 0.3) * np.cos(j * np.pi * 0.8) for i, j in Cosine(50, dim=2).frequencies
        ]
        np.testing.assert_allclose(Cosine(50, dim=2)(point), expected, atol=1e-14)


def test_cosine_grid():
    grid = Cosine.grid(10, dim=2)
    assert grid.num_features == 100 and np.max(grid.frequencies) == 10
    every = [(i, j) for i in range(1, 11) for j in range(1, 11)]
    assert list(grid.frequencies) == sorted(every, key=lambda f: (sum(f), f))
    assert Cosine.grid(10, dim=2, constant=True).num_features == 121
    assert Cosine(5, max_frequency=5).frequencies == Cosine(5).frequencies


def test_maps_of_30_dimensions_are_cheap_to_build():
    assert Cosine(50, dim=30).num_features == Fourier(25, dim=30).num_features == 50
    assert Polynomial(8, dim=30, max_interaction=1).num_features == 240


def test_legendre_equals_scipy():
    x = np.linspace(-1, 1, 401)
    expected = eval_legendre(np.arange(1, 201)[None], x[:, None])
    with jax.enable_x64(True):
        np.testing.assert_allclose(Legendre(100)(x[:, None]), expected[:, :100], atol=1e-12)
    single = Legendre(200)(x[:, None].astype(np.float32))
    assert np.abs(single).max() < 1 + 1e-4
    np.testing.assert_allclose(single, expected, atol=2e-3)
    assert Legendre(3, dim=2).names == ("P1(x1) P1(x2)", "P1(x1) P2(x2)", "P2(x1) P1(x2)")
    assert Legendre(2, constant=True).names == ("constant", "P1(x1)")


def test_orthogonality():
    nodes, weights = roots_legendre(60)
    with jax.enable_x64(True):
        legendre = np.asarray(Legendre(20, constant=True)(nodes[:, None]))
        cosine = np.asarray(Cosine(20, lower=-1.0, upper=1.0)(nodes[:, None]))
    gram = legendre.T @ (weights[:, None] * legendre)
    np.testing.assert_allclose(gram, np.diag(2 / (2 * np.arange(20) + 1)), atol=1e-12)
    np.testing.assert_allclose(cosine.T @ (weights[:, None] * cosine), np.eye(20), atol=1e-12)


def test_fourier_values_groups_and_order():
    features = Fourier(6, dim=2, constant=True)
    assert features.frequencies == ((0, 1), (1, 0), (0, 2), (1, -1), (1, 1), (2, 0))
    assert features.groups == (0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6)
    assert features.group_sizes == (1, 2, 2, 2, 2, 2, 2)
    assert features.names[3:5] == ("cos, sin(2 pi (2 x2))", "cos, sin(2 pi (x1 - x2))")
    point = np.array([0.3, 0.8])
    with jax.enable_x64(True):
        angles = 2 * np.pi * np.asarray(features.frequencies) @ point
        expected = [1.0, *np.stack([np.cos(angles), np.sin(angles)], -1).ravel()]
        np.testing.assert_allclose(features(point), expected, atol=1e-14)
    many = Fourier(200, dim=3).frequencies
    assert len(set(many)) == 200 and not any(tuple(-i for i in k) in set(many) for k in many)
    key = [(sum(map(abs, k)), k) for k in many]
    assert key == sorted(key)


def test_polynomial_by_monomial():
    features = Polynomial(2, dim=2, constant=True)
    assert features.names == ("constant", "x1", "x2", "x1^2", "x1 x2", "x2^2")
    assert features.groups == tuple(range(6))
    np.testing.assert_allclose(features(np.array([0.5, -0.25])), [1, 0.5, -0.25, 0.25, -0.125, 0.0625])
    limited = Polynomial(3, dim=3, max_interaction=2)
    assert limited.num_features == 18 and "x1^2 x3" in limited.names and "x1 x2 x3" not in limited.names
    assert "x1 x2 x3" in Polynomial(3, dim=3).names


def test_polynomial_by_variables():
    features = Polynomial(3, dim=3, max_interaction=2, group_by="variables", lower=0.0, upper=2.0)
    assert features.names == ("x1", "x2", "x3", "x1 x x2", "x1 x x3", "x2 x x3")
    assert features.group_sizes == (3, 3, 3, 3, 3, 3)
    assert features.groups == tuple(sorted(features.groups))
    values = np.asarray(features(np.array([1.5, 1.0, 2.0])))  # 0.5, 0 and 1 after scaling
    np.testing.assert_allclose(values[:3] * np.sqrt(3), [0.5, 0.25, 0.125], rtol=1e-6)
    np.testing.assert_allclose(values[12:15] * np.sqrt(3), [0.5, 0.25, 0.5], rtol=1e-6)  # x1x3 x1^2x3 x1x3^2
    with_constant = Polynomial(2, dim=2, constant=True, group_by="variables")
    assert with_constant.names[0] == "constant" and with_constant.group_sizes == (1, 2, 2, 1)


def test_box_scaling_is_only_a_change_of_units():
    unit = np.random.default_rng(1).uniform(size=(5, 2))
    lower, upper = np.array([-3.0, 10.0]), np.array([4.0, 10.5])
    box = dict(dim=2, lower=lower, upper=upper)
    with jax.enable_x64(True):
        for plain, boxed in [
            (Cosine(20, dim=2), Cosine(20, **box)),
            (Fourier(20, dim=2), Fourier(20, **box)),
            (Legendre(20, dim=2, lower=0.0, upper=1.0), Legendre(20, **box)),
            (Polynomial(4, dim=2, lower=0.0, upper=[1, 1]), Polynomial(4, **box)),
        ]:
            np.testing.assert_allclose(boxed(lower + unit * (upper - lower)), plain(unit), atol=1e-11)


def test_concatenate_and_scaled():
    fourier, cosine = Fourier(2), Cosine(2)
    both = Concatenate(fourier, cosine, Concatenate(cosine))
    assert both.groups == (0, 0, 1, 1, 2, 3, 4, 5)
    assert both.names == fourier.names + 2 * cosine.names
    x = np.array([[0.2], [0.9]])
    expected = np.concatenate([fourier(x), cosine(x), cosine(x)], axis=1)
    np.testing.assert_allclose(both(x), expected, atol=1e-6)
    scaled = Scaled(both, [2, 0, 1, 1, 1, 3])
    np.testing.assert_allclose(scaled(x), expected * [2, 2, 0, 0, 1, 1, 1, 3], atol=1e-6)
    gradient = jax.grad(lambda s: jnp.sum(Scaled(cosine, s)(x)))(jnp.ones(2))
    np.testing.assert_allclose(gradient, np.sum(cosine(x), axis=0), rtol=1e-5)


def test_arrays_of_a_function_are_leaves_of_the_map():
    traces = []

    @eqx.filter_jit
    def loss(weights):
        traces.append(1)
        features = FunctionFeatures(Network(weights), groups=[0, 1], **BOX)
        return jnp.sum(features(jnp.array([1.0, 0.5])))

    gradient = jax.grad(loss)(jnp.zeros((2, 2)))
    np.testing.assert_allclose(gradient, [[0.5, 0.25]] * 2)
    features = FunctionFeatures(Network(np.eye(2)), groups=[0, 1], **BOX)
    assert len(jax.tree.leaves(features)) == 1 and features.names == ("group 0", "group 1")


# --- the bound, and points of the box ---


def test_check_bounded_and_normalise():
    key = jax.random.key(3)
    features = FunctionFeatures(steep, groups=[0, 1, 1], names=["wave", "steep"], lower=(0, 0), upper=(1, 2))
    np.testing.assert_allclose(max_kernel_diagonal(features, key=key), [1, 13], rtol=1e-5)
    with pytest.raises(ValueError, match=r"`features` .*normalise.*'steep' \(group 1: 13\)"):
        check_bounded(features, key=key)
    fixed = normalise(features, key=key)
    np.testing.assert_allclose(fixed.scales, [1, 13**-0.5], rtol=1e-5)
    check_bounded(fixed, key=jax.random.key(4))
    assert max_kernel_diagonal(fixed, key=key).max() <= 1 + 1e-6
    broken = FunctionFeatures(lambda x: x / 0, groups=[0], lower=0.0, upper=1.0)
    with pytest.raises(ValueError, match="'group 0'"):
        check_bounded(broken, key=key)
    with pytest.raises(ValueError, match="`features` should be finite"):
        normalise(broken, key=key)
    many = FunctionFeatures(lambda x: jnp.full(7, 2.0) * x, groups=range(7), lower=0.0, upper=1.0)
    with pytest.raises(ValueError, match="and 2 more"):
        check_bounded(many, key=key)


def test_bounds_work_under_jit():
    features = CASES["function"]()
    scales = jax.jit(lambda key: normalise(features, num_points=100, key=key).scales)(jax.random.key(0))
    np.testing.assert_allclose(scales, [1, 13**-0.5], rtol=1e-5)
    jax.jit(lambda key: check_bounded(features, num_points=100, key=key))(jax.random.key(0))


def test_box_grid_and_sample_box():
    line = Cosine(3, lower=-2.0, upper=0.1)
    np.testing.assert_allclose(box_grid(line, 1000)[:, 0], np.linspace(-2, 0.1, 1000), atol=1e-6)
    plane = Cosine(3, dim=2, **BOX)
    grid = box_grid(plane, 40)
    assert grid.shape == (1600, 2)
    np.testing.assert_allclose(
        np.asarray(grid)[[0, 1, 40, -1]],
        [(-1, 0.5), (-1, 0.5 + 0.25 / 39), (-1 + 3 / 39, 0.5), (2, 0.75)],
        rtol=1e-5,
    )
    assert box_grid(plane, (2, 5)).shape == (10, 2)
    plane(grid)
    sample = sample_box(plane, 2000, key=jax.random.key(0))
    plane(sample)
    np.testing.assert_allclose(sample.mean(axis=0), [0.5, 0.625], atol=0.05)
    with pytest.raises(ValueError, match="`num_per_dim` should be a whole number >= 2"):
        box_grid(plane, 1)
    with pytest.raises(ValueError, match="`num_per_dim` should be one count, or 2 counts"):
        box_grid(plane, (2, 3, 4))
    with pytest.raises(ValueError, match="`num_points`"):
        sample_box(plane, 0, key=jax.random.key(0))


@pytest.mark.parametrize("upper", [0.1, 0.7, 1e6 + 0.1])
@pytest.mark.parametrize("kind", [Cosine, Legendre])
def test_float32_rounding_at_the_edges_is_accepted(kind, upper):
    features = kind(3, lower=upper - 1 / 3, upper=upper)
    edges = np.array([[features.lower[0]], [upper]], np.float32)
    past = np.nextafter(edges, np.array([[-np.inf], [np.inf]], np.float32))
    np.testing.assert_array_equal(features(past), features(edges))
    assert np.isfinite(jax.jit(features)(past)).all()


def test_integer_points_become_the_default_float():
    values = Cosine(2)([[0], [1]])
    assert values.dtype == jnp.result_type(float)
    np.testing.assert_allclose(values, [[1, 1], [-1, 1]])


# --- bad input ---


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: Cosine(2)(np.zeros(5)), r"shape \[..., 1\] \(use points\[:, None\] .*got shape \[5\]"),
        (lambda: Cosine(2)(0.5), r"use points\[..., None\]"),
        (lambda: Cosine(2, dim=3)(np.zeros((4, 2))), r"`points` .*shape \[..., 3\], but got shape \[4, 2\]"),
        (lambda: jax.jit(Cosine(2))(np.zeros(5)), r"use points\[:, None\]"),
        (lambda: Cosine(2)(np.zeros(1, complex)), "`points` should be real"),
        (lambda: Cosine(2)(np.array([1.25])), r"in the box \[0.0, 1.0\], but got \[1.25\]"),
        (lambda: Cosine(0), "`num_features` should be a whole number >= 1"),
        (lambda: Cosine(5.0), "`num_features` should be a whole number"),
        (lambda: Cosine(6, max_frequency=5), "`num_features` should be at most 5"),
        (lambda: Cosine(6, max_frequency=0), "`max_frequency`"),
        (lambda: Cosine(5, dim=0), "`dim`"),
        (lambda: Cosine.grid(0, dim=2), "`num_frequencies`"),
        (lambda: Cosine(5, dim=2, lower=(0.0, 1.0, 2.0)), "`lower` should be a number, or 2 numbers"),
        (lambda: Cosine(5, upper=(1.0, 2.0)), "`upper` should be a number, or 1 numbers"),
        (lambda: Cosine(5, lower=1.0), "`lower` should be below `upper`"),
        (lambda: Cosine(5, upper=np.inf), "`upper` should be finite"),
        (lambda: Cosine(5, lower=-1e308, upper=1e308), "`upper` should be a finite distance"),
        (lambda: Cosine(5, lower="a"), "`lower` should be a number"),
        (lambda: Cosine(5, lower=[[0.0]]), "`lower` should be a number"),
        (lambda: Cosine(5, lower=[[0.0], 1.0]), "`lower` should be a list of numbers"),
        (lambda: jax.jit(lambda low: Cosine(5, lower=low)(0.5))(0.0), "`lower` .*known before tracing"),
        (lambda: Legendre(-1), "`num_features`"),
        (lambda: Fourier(0), "`num_frequencies`"),
        (lambda: Polynomial(0), "`degree`"),
        (lambda: Polynomial(2, max_interaction=0), "`max_interaction`"),
        (lambda: Polynomial(2, group_by="degree"), "`group_by` should be 'monomial' or 'variables'"),
        (lambda: Concatenate(), "`maps` should be at least one"),
        (lambda: Concatenate(Cosine(2), 3), r"`maps\[1\]` should be an AbstractFeatures"),
        (
            lambda: Concatenate(Cosine(2), Legendre(2)),
            r"`maps` .*\(0.0,\) to \(1.0,\).*\(-1.0,\) to \(1.0,\)",
        ),
        (lambda: Scaled(Cosine(2), [1.0]), r"`scales` should be an array of shape \[2\]"),
        (lambda: Scaled(Cosine(2), [1.0, np.nan]), "`scales` should be finite"),
        (lambda: Scaled(jnp.cos, [1.0]), "`features` should be an AbstractFeatures"),
        (lambda: validate_groups("groups", [0, 2, 3, 0]), "`groups` .*holes, but got no feature of group 1"),
        (lambda: validate_groups("ids", [0, -1]), "`ids` should be group ids >= 0, but got -1 for feature 1"),
        (lambda: validate_groups("groups", [0.0, 1.0]), "`groups` should be whole numbers"),
        (lambda: validate_groups("groups", [True, False]), "`groups` should be whole numbers"),
        (lambda: validate_groups("groups", [0, 1], 3), "each of the 3 features, but got 2 ids"),
        (lambda: validate_groups("groups", [[0, 1]]), r"`groups` .*got shape \[1, 2\]"),
        (lambda: validate_groups("groups", []), "`groups` should be a list"),
        (lambda: jax.jit(lambda g: validate_groups("groups", g))(jnp.arange(2)), "known before tracing"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(fn=3), "`fn` should be a function"),
        (dict(fn=lambda x: x[0]), r"`fn` .*point \[2\] that returns an array \[2\].* returns shape \[\]"),
        (dict(fn=lambda x: jnp.zeros(3)), r"returns shape \[3\]"),
        (dict(fn=lambda x: [x, x]), "returns a list"),
        (dict(groups=[0, 2]), "`groups` .*no feature of group 1"),
        (dict(groups=[-1, 0]), "`groups` .*>= 0"),
        (dict(names="ab"), "`names` should be a list of strings"),
        (dict(names=["a"]), "`names` should be one name for each of the 2 groups"),
        (dict(lower=(0.0, 0.0, 0.0)), "`upper` should be a number, or 3 numbers"),
    ],
)
def test_bad_function_features(change, message):
    arguments = dict(fn=lambda x: x, groups=[0, 1], lower=(0.0, 0.0), upper=(1.0, 1.0)) | change
    with pytest.raises(ValueError, match=message):
        FunctionFeatures(arguments.pop("fn"), **arguments)


def test_unhashable_function_is_refused():
    class Unhashable:
        __hash__ = None

        def __call__(self, point):
            return point

    with pytest.raises(ValueError, match="`fn` should be hashable"):
        FunctionFeatures(Unhashable(), groups=[0], lower=0.0, upper=1.0)
