"""The dictionary of a search space: values against independent formulas, transformations, messages."""

import itertools
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import jlibo
from jlibo.features import AbstractFeatures, check_bounded, max_kernel_diagonal
from jlibo.groups import validate_groups
from jlibo.tune import (
    Categorical,
    Float,
    Int,
    LargeDictionaryWarning,
    SearchSpace,
    SpaceFeatures,
    space_features,
)

SPACE = SearchSpace(
    alpha=Float(0, 1),
    depth=Int(2, 9),
    kind=Categorical(["tree", "linear", None, 3]),
    lam=Float(1e-6, 10.0, log=True),
    units=Int(1, 4096, log=True),
    warm=Categorical([True, False]),
)


def generator(seed=0):
    return np.random.default_rng(seed)


# --- values ---


def reference_functions(parameter, value, most):
    """Return the weighted functions of one parameter at a value, computed from the definitions."""
    if isinstance(parameter, Categorical):
        k = len(parameter.choices)
        index = [choice is value for choice in parameter.choices].index(True)
        return scipy.linalg.helmert(k)[:, index] * np.sqrt(k / (k - 1))
    if isinstance(parameter, Int):
        low, high = parameter.low - 0.5, parameter.high + 0.5
        most = min(most, parameter.high - parameter.low)
    else:
        low, high = parameter.low, parameter.high
    u = np.log(value / low) / np.log(high / low) if parameter.log else (value - low) / (high - low)
    weights = [1 / j for j in range(1, most + 1)]
    total = np.sqrt(sum(w**2 for w in weights))
    return np.array([w / total * np.cos(j * np.pi * u) for j, w in enumerate(weights, 1)])


def reference_features(space, params, num_basis, num_pair_basis, pairs):
    parts = [np.ones(1)]
    parts += [reference_functions(space[name], params[name], num_basis) for name in space]
    for a, b in pairs:
        left = reference_functions(space[a], params[a], num_pair_basis)
        right = reference_functions(space[b], params[b], num_pair_basis)
        parts.append(np.outer(left, right).ravel())
    return parts


@pytest.mark.parametrize("num_basis, num_pair_basis", [(6, 3), (1, 1), (9, 2)])
def test_values_equal_the_definitions(num_basis, num_pair_basis):
    features = SPACE.features(num_basis=num_basis, num_pair_basis=num_pair_basis)
    pairs = list(itertools.combinations(SPACE.names, 2))
    with jax.enable_x64(True):
        for point in SPACE.sample_unit(12, rng=generator(1)):
            parts = reference_features(SPACE, SPACE.from_unit(point), num_basis, num_pair_basis, pairs)
            assert features.group_sizes == tuple(map(len, parts))
            np.testing.assert_allclose(features(point), np.concatenate(parts), rtol=0, atol=1e-12)


def test_groups_and_names():
    features = space_features(SPACE)
    assert isinstance(features, SpaceFeatures) and isinstance(features, AbstractFeatures)
    assert features == SPACE.features() and features.space == SPACE
    assert features.names[:8] == (
        "1",
        "alpha",
        "depth",
        "kind",
        "log lam",
        "log units",
        "warm",
        "alpha x depth",
    )
    assert {"alpha x log lam", "log lam x log units", "kind x log lam"} < set(features.names)
    assert features.num_groups == 1 + 6 + 15 == len(set(features.names))
    assert features.group_sizes[:7] == (1, 6, 6, 3, 6, 6, 1)
    assert dict(zip(features.names, features.group_sizes, strict=True))["kind x log lam"] == 9
    assert features.lower == (0.0,) * 6 and features.upper == (1.0,) * 6 and features.dim == 6
    assert features.free_groups == (0,)
    assert validate_groups("groups", features.groups, features.num_features) == features.groups
    assert features.groups == tuple(sorted(features.groups))
    assert not jax.tree.leaves(features)  # all fields are static


def test_names_that_look_like_groups_are_quoted():
    space = SearchSpace({"a": Float(1, 2, log=True), "log a": Float(0, 1), "b": Float(0, 1)})
    assert space.features().names[:4] == ("1", "log 'a'", "'b'", "'log a'")
    names = SearchSpace({"1": Float(0, 1), "b": Int(0, 1)}).features().names
    assert names == ("1", "'1'", "'b'", "'1' x 'b'")


def test_int_has_no_more_functions_than_values():
    for k in (2, 3, 6, 7, 40):
        for log in (False, True):
            space = SearchSpace(n=Int(1, k, log=log))
            features = space.features()
            assert features.group_sizes == (1, min(6, k - 1))
            with jax.enable_x64(True):
                design = np.asarray(features(np.array([space.to_unit(dict(n=n)) for n in range(1, k + 1)])))
            assert np.linalg.matrix_rank(design) == design.shape[1]  # no column is redundant
            if not log:  # cosines at the middles of cells are orthogonal
                gram = design.T @ design
                np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-12)


@pytest.mark.parametrize("k", [2, 3, 5, 17])
def test_contrasts_of_a_categorical(k):
    space = SearchSpace(c=Categorical(range(k)))
    features = space.features()
    with jax.enable_x64(True):
        contrasts = np.asarray(features(np.array([space.to_unit(dict(c=c)) for c in range(k)])))[:, 1:]
        assert contrasts.shape == (k, k - 1)
        np.testing.assert_allclose(contrasts.sum(axis=0), 0, atol=1e-12)
        np.testing.assert_allclose(contrasts.T @ contrasts, k / (k - 1) * np.eye(k - 1), atol=1e-12)
        kernel = contrasts @ contrasts.T  # all choices are equally far apart, whatever their order
        np.testing.assert_allclose(kernel, np.where(np.eye(k), 1, -1 / (k - 1)), atol=1e-12)
        # Constant on the cell of each choice, its edges included.
        inside = (np.arange(k)[:, None] + np.array([1e-9, 0.3, 1 - 1e-9])) / k
        np.testing.assert_array_equal(
            features(inside[..., None])[..., 1:], np.repeat(contrasts[:, None], 3, 1)
        )
        np.testing.assert_array_equal(features(np.ones(1))[1:], contrasts[-1])
        np.testing.assert_array_equal(features(np.zeros(1))[1:], contrasts[0])


def test_interactions_are_products_of_main_effects():
    features = SPACE.features(num_basis=5, num_pair_basis=2)
    points = generator(2).uniform(size=(9, 6))
    with jax.enable_x64(True):
        values = np.asarray(features(points))
    groups = np.asarray(features.groups)
    of = {name: values[:, groups == j] for j, name in enumerate(features.names)}

    def first(name):
        parameter = SPACE[name.removeprefix("log ")]
        block = of[name] if isinstance(parameter, Categorical) else of[name][:, :2]
        if isinstance(parameter, Categorical):
            return block
        return block / np.sqrt(sum(1 / j**2 for j in (1, 2)) / sum(1 / j**2 for j in range(1, 6)))

    for a, b in itertools.combinations(features.names[1:7], 2):
        products = first(a)[:, :, None] * first(b)[:, None, :]
        np.testing.assert_allclose(of[f"{a} x {b}"], products.reshape(9, -1), atol=1e-12)


def test_every_kernel_is_bounded_by_one():
    key = jax.random.key(0)
    for sizes in (dict(), dict(num_basis=3, num_pair_basis=3), dict(num_pair_basis=1)):
        features = SPACE.features(**sizes)
        check_bounded(features, key=key)
        # The bound is attained: by numbers at the corners, by a categorical everywhere.
        np.testing.assert_allclose(max_kernel_diagonal(features, num_points=500, key=key), 1, rtol=1e-5)


def test_interactions_can_be_selected():
    features = SPACE.features(interactions=[("warm", "lam"), ["alpha", "depth"], ("lam", "warm")])
    assert features.names[7:] == ("alpha x depth", "log lam x warm")
    assert features == SPACE.features(interactions=(pair for pair in [("depth", "alpha"), ("lam", "warm")]))
    alone = SPACE.features(interactions=False)
    assert alone.names == ("1", "alpha", "depth", "kind", "log lam", "log units", "warm")
    assert alone == SPACE.features(interactions=[]) == SPACE.features(interactions=np.bool_(False))
    every = list(itertools.permutations(SPACE.names, 2))
    assert SPACE.features(interactions=every) == SPACE.features(interactions=True) == SPACE.features()
    points = SPACE.sample_unit(3, rng=generator())
    columns = [
        f for f, j in enumerate(SPACE.features().groups) if SPACE.features().names[j] in features.names
    ]
    np.testing.assert_allclose(features(points), np.asarray(SPACE.features()(points))[:, columns], atol=1e-12)


def test_one_parameter_and_few_functions():
    assert SearchSpace(a=Float(0, 1)).features().names == ("1", "a")
    small = SPACE.features(num_basis=2)  # num_pair_basis is at most num_basis
    assert small == SPACE.features(num_basis=2, num_pair_basis=2)
    only_choices = SearchSpace(a=Categorical(["x", "y"]), b=Categorical([1, 2, 3])).features()
    assert only_choices.group_sizes == (1, 1, 2, 2)
    assert only_choices(np.array([0.25, 0.5])).shape == (6,)


# --- transformations ---


def test_dtypes_batches_jit_and_vmap(strict_promotion):
    features = SPACE.features()
    for enable, dtype in ((False, np.float32), (True, np.float32), (True, np.float64)):
        with jax.enable_x64(enable):
            points = SPACE.sample_unit(6, rng=generator(5)).astype(dtype)
            values = np.asarray(features(points))
            assert values.shape == (6, features.num_features) and values.dtype == dtype
            alone = np.asarray(jax.jit(features.evaluate)(jnp.asarray(points[2])))
            assert alone.dtype == dtype
            np.testing.assert_allclose(alone, values[2], rtol=0, atol=1e-6)
    with jax.enable_x64(True):
        close = dict(rtol=0, atol=1e-13)
        np.testing.assert_allclose(jax.jit(lambda f, x: f(x))(features, points), values, **close)
        np.testing.assert_allclose(jax.vmap(features)(points), values, **close)
        np.testing.assert_allclose(features(points.reshape(2, 3, 6))[1, 0], values[3], **close)
        single = features(points.astype(np.float32))
        np.testing.assert_allclose(single, values, atol=1e-5)


def test_gradient_equals_differences():
    features = SPACE.features()
    with jax.enable_x64(True):
        jacobian_of = jax.jit(jax.jacobian(features))
        for point in [*SPACE.sample_unit(3, rng=generator(6)), np.zeros(6), np.ones(6)]:
            jacobian = np.asarray(jacobian_of(jnp.asarray(point)))
            assert np.isfinite(jacobian).all()
            inward = np.where(point > 0.5, -1e-4, 1e-4)
            for k in range(6):
                at = [features(point + t * inward[k] * np.eye(6)[k]) for t in (0, 1, 2)]
                slope = (-3 * at[0] + 4 * at[1] - at[2]) / (2 * inward[k])
                np.testing.assert_allclose(jacobian[:, k], slope, rtol=1e-3, atol=1e-4)
        categorical = SPACE.names.index("kind")
        assert (jacobian[:, categorical] == 0).all()  # constant on the cell of a choice


def test_points_outside_the_box_raise_or_give_nan():
    features = SPACE.features()
    outside = np.full((2, 6), 0.5)
    outside[1, 2] = 1.5
    with pytest.raises(ValueError, match="`points` should be finite and in the box"):
        features(outside)
    values = np.asarray(jax.jit(features)(jnp.asarray(outside)))
    assert np.isfinite(values[0]).all() and np.isnan(values[1]).all()
    assert np.isnan(jax.jit(features)(jnp.full(6, jnp.nan))).all()


def test_equal_spaces_share_one_trace(count_traces):
    fn, counter = count_traces(lambda features, points: features(points))
    jitted = jax.jit(fn)
    points = SPACE.sample_unit(4, rng=generator())
    for seed in range(3):
        again = SearchSpace.from_spec(SPACE.spec()).features()
        jitted(again, SPACE.sample_unit(4, rng=generator(seed)))
    assert counter.count == 1
    jitted(SPACE.features(num_basis=5), points)
    assert counter.count == 2


def test_traced_program_does_not_grow_with_the_dictionary():
    def size(num):
        space = SearchSpace({f"p{i}": Float(0, 1) for i in range(num)} | {"c": Categorical(range(num))})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LargeDictionaryWarning)
            return len(jax.make_jaxpr(space.features().evaluate)(jnp.zeros(num + 1)).jaxpr.eqns)

    assert size(20) == size(2) < 60


def test_dictionary_concatenates_with_other_feature_maps():
    space = SearchSpace(a=Float(0, 1), c=Categorical(["x", "y"]))
    features = space.features(num_basis=3, num_pair_basis=2)
    joined = jlibo.Concatenate(features, jlibo.Cosine(2, dim=2))
    assert joined.num_groups == 4 + 2 and joined(np.full(2, 0.25)).shape == (features.num_features + 2,)


# --- warning and messages ---


def test_large_dictionaries_warn():
    large = SearchSpace({f"p{i:02}": Float(0, 1) for i in range(12)})
    with pytest.warns(LargeDictionaryWarning) as caught:
        features = large.features()
    assert features.num_features == 1 + 12 * 6 + 66 * 9 and features.num_groups == 79
    text = str(caught[0].message)
    assert "667 features in 79 groups (12 main effects, 66 interactions and the constant)" in text
    assert "num_pair_basis=2 (337 features), or interactions=False (73 features)" in text
    assert "interactions=[('a', 'b'), ...]" in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert large.features(interactions=False).num_features == 73
        assert large.features(num_pair_basis=1).num_features == 73 + 66
        assert large.features(interactions=[("p00", "p01")]).num_features == 73 + 9
        jax.jit(lambda f, x: f(x))(features, np.full(12, 0.5))  # the warning is given only on construction
    with pytest.warns(LargeDictionaryWarning) as caught:
        assert large.features(num_pair_basis=2).num_features == 337
    with pytest.warns(LargeDictionaryWarning, match="fewer: a smaller `num_basis`"):
        large.features(num_basis=30, interactions=False)


def test_warning_starts_above_300_features():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert SearchSpace(a=Float(0, 1)).features(num_basis=299).num_features == 300
    with pytest.warns(LargeDictionaryWarning, match="has 301 features in 2 groups"):
        SearchSpace(a=Float(0, 1)).features(num_basis=300)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: space_features(dict(SPACE)), "`space` should be a SearchSpace, but got"),
        (lambda: SPACE.features(num_basis=0), "`num_basis` should be a whole number >= 1, but got 0."),
        (lambda: SPACE.features(num_pair_basis=1.5), "`num_pair_basis` should be a whole number known"),
        (
            lambda: SPACE.features(interactions="alpha"),
            "`interactions` should be True, False, or a list of pairs",
        ),
        (lambda: SPACE.features(interactions=1), "`interactions` should be True, False, or a list of pairs"),
        (
            lambda: SPACE.features(interactions=("alpha", "lam")),
            "two different names, but got the entry 'alpha'.",
        ),
        (lambda: SPACE.features(interactions=[("lam", "lam")]), "but got the entry ('lam', 'lam')."),
        (lambda: SPACE.features(interactions=[("alpha", "lam", "warm")]), "but got the entry ('alpha',"),
        (
            lambda: SPACE.features(interactions=[("alpha", "lamb")]),
            "'warm', but got the unknown name 'lamb' (did you mean 'lam'?).",
        ),
    ],
)
def test_invalid_arguments_raise(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_two_letter_names_are_not_read_as_pairs():
    space = SearchSpace(lr=Float(0, 1), wd=Float(0, 1))
    with pytest.raises(ValueError, match="got the entry 'lr'"):
        space.features(interactions=("lr", "wd"))
