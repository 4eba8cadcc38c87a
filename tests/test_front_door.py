"""Checks of types from annotations: what is accepted, and that calls are otherwise as before."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jlibo.checks import ArrayLike
from jlibo.front_door import front_door


@front_door
def takes(
    number: float = 0.0,
    count: int = 1,
    flag: bool = True,
    array: Float[Array, "rows columns"] | None = None,
    like: ArrayLike = 0.0,
    step: int | Int[Array, ""] = 0,
    sizes: int | Sequence[int] = 1,
    names: Sequence[str] = (),
    parts: Mapping[str, float] | None = None,
    way: Literal["up", "down"] = "up",
    fn: Callable[[int], int] = abs,
    later: "NotImported" = None,
    anything: Any = None,
    *more: int,
    key: PRNGKeyArray | None = None,
    **others: str,
) -> dict[str, Any]:
    return dict(locals())


@pytest.mark.parametrize(
    "good",
    [
        {"number": 1},
        {"number": np.float32(1)},
        {"number": jnp.asarray(1.0)},
        {"count": np.int64(3)},
        {"flag": np.bool_(False)},
        {"array": [[1.0, 2.0]]},
        {"array": np.ones((2, 2), bool)},
        {"like": [jnp.asarray(1.0), 2]},
        {"like": jnp.ones(3, jnp.bfloat16)},
        {"step": jnp.asarray(3)},
        {"sizes": [1, 2]},
        {"sizes": np.arange(3)},
        {"names": ["a", "b"]},
        {"parts": {"a": 1.0}},
        {"way": "down"},
        {"later": object(), "anything": object()},
        {"key": jax.random.key(0)},
        {"key": jax.random.PRNGKey(0)},
        {"unknown": "a string"},
    ],
    ids=lambda good: ",".join(good),  # values may have addresses, which differ between processes
)
def test_values_that_fit_pass_unchanged(good):
    result = takes(**good)
    for name, value in good.items():
        assert (result["others"] if name == "unknown" else result)[name] is value


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"number": True}, "`number` should be a number, but got True"),
        ({"number": "1"}, "`number` should be a number, but got '1'"),
        ({"count": 1.0}, "`count` should be a whole number, but got 1.0"),
        ({"count": True}, "`count` should be a whole number"),
        ({"flag": 1}, "`flag` should be True or False"),
        ({"array": [["a"]]}, "`array` should be an array of numbers"),
        ({"array": jax.random.key(0)}, "`array` should be an array of numbers"),
        ({"like": None}, "`like` should be an array of numbers"),
        ({"step": "a"}, "`step` should be a whole number, but"),
        ({"sizes": "12"}, "`sizes` should be a whole number or a list of whole numbers"),
        ({"sizes": [1, 2.5]}, r"`sizes\[1\]` should be a whole number, but got 2.5"),
        ({"names": "abc"}, "`names` should be a list of strings, but got 'abc'"),
        ({"names": ["a", 1]}, r"`names\[1\]` should be a string, but got 1"),
        ({"parts": {"a": "b"}}, r"`parts\['a'\]` should be a number"),
        ({"way": "left"}, "`way` should be 'up' or 'down', but got 'left'"),
        ({"fn": 3}, "`fn` should be a function, but got 3"),
        ({"key": 0}, "`key` should be one random key"),
        ({"unknown": 3}, "`unknown` should be a string, but got 3"),
    ],
    ids=str,
)
def test_values_that_do_not_fit_are_named(bad, message):
    with pytest.raises(ValueError, match=message):
        takes(**bad)


def test_further_positional_arguments_are_checked():
    values = [parameter.default for parameter in inspect.signature(takes).parameters.values()][:13]
    assert takes(*values, 1, 2)["more"] == (1, 2)
    with pytest.raises(ValueError, match=r"`more\[1\]` should be a whole number, but got 'b'"):
        takes(*values, 1, "b")


def test_traced_values_are_arrays_and_no_sizes():
    assert jax.jit(lambda x, key: takes(number=x, like=x, step=x, key=key)["like"])(2, jax.random.key(0)) == 2
    with pytest.raises(ValueError, match="`count` should be a whole number known before tracing, but got"):
        jax.jit(lambda x: takes(count=x))(2)
    with pytest.raises(ValueError, match=r"`sizes` should be a whole number or .* known before tracing"):
        jax.jit(lambda x: takes(sizes=x))(2)


def test_missing_and_unknown_arguments_are_errors_of_python():
    @front_door
    def needs(number: float) -> float:
        return number

    with pytest.raises(TypeError, match=r"needs\(\) missing 1 required positional argument: 'number'"):
        needs()
    with pytest.raises(TypeError, match=r"needs\(\) got an unexpected keyword argument 'other'"):
        needs(other=1)
