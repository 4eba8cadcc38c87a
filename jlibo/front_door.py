"""Checks of the types of arguments of public functions, derived from their annotations.

A wrong object, such as a function in place of a policy or two arguments in the wrong order, is refused before
anything is computed, by the same error as all other checks (`jlibo.checks.fail`). The annotation is the only
place that says what an argument may be.

| annotation                                  | what is accepted                                             |
|---------------------------------------------|--------------------------------------------------------------|
| a class                                     | its instances                                                |
| `float`                                     | numbers, also of NumPy and jax; no booleans                  |
| `int`                                       | whole numbers of Python and NumPy; no booleans               |
| an array, with or without a jaxtyping shape | whatever converts to an array of numbers                     |
| `PRNGKeyArray`                              | one key of jax, new or old style                             |
| `Literal`                                   | its values                                                   |
| `Mapping`, `Sequence` and their like        | their instances, if all entries fit                          |
| unions                                      | whatever fits one of the members                             |
| `Any`, type variables, names not imported   | everything                                                   |

Shapes and ranges are not checked here. A traced array is an array, so checked functions can be traced.
"""

import abc
import collections.abc
import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar, final

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np

from jlibo.checks import fail, is_concrete
from jlibo.printable import printable

P = ParamSpec("P")
R = TypeVar("R")

_KEY = "one random key, such as jax.random.key(0)"
_NUMBER, _WHOLE, _BOOLEAN = "a number", "a whole number", "True or False"
_ARRAY, _NUMBERS, _NONE = "an array of numbers", "a number or an array of numbers", "None"
_CONTAINERS = (collections.abc.Sequence, collections.abc.Iterable, tuple, list, set, frozenset)


def front_door(fn: Callable[P, R]) -> Callable[P, R]:
    """Return `fn` with a check of the types of its arguments; those without an annotation are not checked.

    ```python
    import jlibo
    from jlibo.front_door import front_door

    @front_door
    def noise_of(policy: jlibo.AbstractPolicy):
        return policy.noise_std

    noise_of(jlibo.Greedy(0.1))
    ```
    """

    @functools.cache  # on the first call, when all names of the annotations exist
    def parts() -> tuple[inspect.Signature, dict[str, "_AbstractKind"]]:
        signature = inspect.signature(fn)
        scope = {**vars(sys.modules[fn.__module__])}
        found = {name: _resolved(one.annotation, scope) for name, one in signature.parameters.items()}
        return signature, _kinds(found)

    @functools.wraps(fn)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        signature, kinds = parts()
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:  # a missing or unknown argument: the call itself says so
            return fn(*args, **kwargs)
        for name, value in given.items():
            kind = kinds.get(name)
            if kind is None:
                continue
            form = signature.parameters[name].kind
            if form is inspect.Parameter.VAR_POSITIONAL:
                for place, one in enumerate(value):
                    _check(f"{name}[{place}]", one, kind)
            elif form is inspect.Parameter.VAR_KEYWORD:
                for key, one in value.items():
                    _check(key, one, kind)
            else:
                _check(name, value, kind)
        return fn(*args, **kwargs)

    return checked


def check_fields(module: Any) -> None:
    """Check the types of the fields of a dataclass or module, given their annotations.

    Call it in `__check_init__` or `__post_init__`, for classes whose `__init__` is generated.
    """
    for name, kind in _field_kinds(type(module)).items():
        _check(name, getattr(module, name), kind)


def got(value: object) -> str:
    """Return an argument in words: a short text and its type, or the shape and dtype of an array."""
    if isinstance(value, jax.Array | np.ndarray):
        return f"an array of shape {list(value.shape)} and dtype {value.dtype}"
    return f"{printable(repr(value), max_length=100)} ({type(value).__name__})"


@functools.cache
def _field_kinds(cls: type) -> dict[str, "_AbstractKind"]:
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):  # an annotation is resolved where it was written
        scope = vars(sys.modules[base.__module__])
        own = {name: _resolved(one, scope) for name, one in inspect.get_annotations(base).items()}
        found |= own
    names = {field.name for field in dataclasses.fields(cls) if field.init}
    return _kinds({name: annotation for name, annotation in found.items() if name in names})


def _kinds(annotations: Mapping[str, Any]) -> dict[str, "_AbstractKind"]:
    found = {name: _kind_of(annotation) for name, annotation in annotations.items()}
    return {name: kind for name, kind in found.items() if kind is not None}


def _resolved(annotation: Any, scope: Mapping[str, Any]) -> Any:
    """Return an annotation that may be a string; `Any` if it names something that is not imported."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, dict(scope))
    except (NameError, AttributeError):
        return Any


def _check(argument: str, value: Any, kind: "_AbstractKind") -> None:
    bad = kind.misfit(argument, value)
    if bad is not None:
        is_traced_size = not is_concrete(bad.value) and _WHOLE in bad.words
        known = " known before tracing" if is_traced_size else ""
        fail(bad.argument, " or ".join(bad.words) + known, got(bad.value))


# --- kinds of values ----------------------------------------------------------------------------------------


@final
class _Misfit(NamedTuple):
    """The argument that does not fit, or the part of it, such as `agents['first']`."""

    argument: str
    words: tuple[str, ...]
    value: Any


class _AbstractKind(abc.ABC):
    """What an annotation accepts."""

    @property
    @abc.abstractmethod
    def words(self) -> tuple[str, ...]:
        """The alternatives, in words."""

    @abc.abstractmethod
    def misfit(self, argument: str, value: Any) -> _Misfit | None:
        """Return what does not fit: the value or a part of it. None if all fits."""


@final
@dataclasses.dataclass(frozen=True)
class _Kind(_AbstractKind):
    """One sort of values, and the kind of the entries if it is a container."""

    word: str
    fits: Callable[[Any], bool]
    entries: _AbstractKind | None = None

    @property
    def words(self) -> tuple[str, ...]:
        return (self.word,)

    def misfit(self, argument: str, value: Any) -> _Misfit | None:
        if not self.fits(value):
            return _Misfit(argument, self.words, value)
        if self.entries is None or isinstance(value, jax.Array | np.ndarray):
            return None
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        found = (self.entries.misfit(f"{argument}[{place!r}]", one) for place, one in pairs)
        return next((one for one in found if one is not None), None)


@final
@dataclasses.dataclass(frozen=True)
class _Union(_AbstractKind):
    """Whatever fits one of the members."""

    members: tuple[_AbstractKind, ...]

    @property
    def words(self) -> tuple[str, ...]:
        words = dict.fromkeys(word for member in self.members for word in member.words)
        words.pop(_NONE, None)  # what is left out need not be said
        if _ARRAY in words or _NUMBERS in words:
            for one in (_NUMBER, _WHOLE, _BOOLEAN):
                words.pop(one, None)
        return tuple(words)

    def misfit(self, argument: str, value: Any) -> _Misfit | None:
        found = [member.misfit(argument, value) for member in self.members]
        if None in found:
            return None
        inside = [one for one in found if one is not None and one.argument != argument]
        return inside[0] if inside else _Misfit(argument, self.words, value)


def _kind_of(annotation: Any) -> _AbstractKind | None:
    """Return the kind of an annotation; None if it accepts everything."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _kind_of(args[0])
    if origin is typing.Literal:
        return _Kind(" or ".join(map(repr, args)), lambda value: isinstance(value, str) and value in args)
    if origin in (typing.Union, types.UnionType):
        members: list[_AbstractKind | None] = []
        key_forms = typing.get_args(jaxtyping.PRNGKeyArray)  # a union is flat: its members are among `args`
        if set(key_forms) <= set(args):
            members.append(_Kind(_KEY, _is_key))
            args = tuple(one for one in args if one not in key_forms)
        members += [_kind_of(one) for one in args]
        known = [one for one in members if one is not None]
        return _Union(tuple(known)) if len(known) == len(members) else None
    if origin is not None:
        return _generic(origin, args)
    if annotation is None or annotation is type(None):
        return _Kind(_NONE, lambda value: value is None)
    if not isinstance(annotation, type) or annotation in (Any, object, inspect.Parameter.empty):
        return None
    return _plain(annotation)


def _plain(cls: type) -> _Kind:
    if issubclass(cls, jaxtyping.AbstractArray):
        is_any = cls.dim_str.startswith("*") and " " not in cls.dim_str
        scalar = _WHOLE if "int32" in cls.dtypes and "float32" not in cls.dtypes else _NUMBER
        return _Kind(scalar if cls.dim_str == "" else (_NUMBERS if is_any else _ARRAY), is_numeric)
    if issubclass(cls, jax.Array | np.ndarray):
        return _Kind(_ARRAY, is_numeric)
    if cls is bool or issubclass(cls, np.bool_):
        return _Kind(_BOOLEAN, lambda value: isinstance(value, bool | np.bool_))
    if cls is int:
        return _Kind(_WHOLE, _is_whole)
    if cls in (float, complex) or issubclass(cls, np.number):
        return _Kind(_NUMBER, lambda value: not isinstance(value, bool) and is_numeric(value))
    words = {str: "a string", collections.abc.Callable: "a function"}.get(cls)
    return _Kind(words or _instance_of(cls), lambda value: isinstance(value, cls))


def _generic(origin: Any, args: tuple[Any, ...]) -> _AbstractKind | None:
    if origin is collections.abc.Callable:
        return _Kind("a function", callable)
    if not isinstance(origin, type):
        return None
    if issubclass(origin, Mapping):
        values = _kind_of(args[1])
        return _Kind(f"a mapping{_of(values)}", lambda value: isinstance(value, origin), values)
    if origin in _CONTAINERS:
        is_long_tuple = origin is tuple and (len(args) != 2 or args[1] is not Ellipsis)
        entries = None if is_long_tuple else _kind_of(args[0])
        is_numbers = entries is not None and entries.words[0] in (_NUMBER, _WHOLE)
        word = ("a tuple" if origin is tuple else "a list") + _of(entries)

        def fits(value: Any) -> bool:
            is_text = isinstance(value, str | bytes)
            is_array = isinstance(value, np.ndarray | jax.Array) and value.ndim > 0 and is_numeric(value)
            return (is_numbers and is_array) or (isinstance(value, origin) and not is_text)

        # An iterator can be read only once, so its entries are not looked at.
        return _Kind(word, fits, None if origin is collections.abc.Iterable else entries)
    return _plain(origin)


def _of(entries: _AbstractKind | None) -> str:
    """Return the entries of a container, such as " of whole numbers"; empty if they may be anything."""
    if entries is None:
        return ""
    simple = {_NUMBER: "numbers", _WHOLE: "whole numbers", "a string": "strings", "a function": "functions"}
    simple |= {"a mapping": "mappings"}
    words = [
        simple.get(word, f"{word.partition(',')[0].partition(' ')[2]} objects") for word in entries.words
    ]
    return f" of {' or '.join(words)}" if all(" of " not in word for word in entries.words) else ""


def _instance_of(cls: type) -> str:
    """Return "a Prior"; for an abstract class of the package also an example, the first concrete subclass."""
    words = f"{'an' if cls.__name__[0] in 'AEIOU' else 'a'} {cls.__name__}"
    if not (cls.__module__.startswith("jlibo.") and cls.__name__.startswith("Abstract")):
        return words
    own = [one.__name__ for one in _concrete_subclasses(cls) if one.__module__.startswith("jlibo.")]
    return f"{words}, such as {min(own)}(...)" if own else words


def _concrete_subclasses(cls: type) -> set[type]:
    below = set().union(*(_concrete_subclasses(one) for one in cls.__subclasses__()))
    return below if inspect.isabstract(cls) else below | {cls}


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_numeric(value: Any) -> bool:
    """Return whether a value is a number or converts to an array of numbers."""
    if isinstance(value, jax.Array):
        return not jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    if isinstance(value, int | float | complex | np.number | np.bool_):
        return True
    if value is None or isinstance(value, str | bytes) or callable(value):
        return False
    leaves = jax.tree.leaves(value) if isinstance(value, list | tuple) else ()
    if any(isinstance(leaf, jax.Array) for leaf in leaves):
        return all(is_numeric(leaf) for leaf in leaves)
    try:
        return np.asarray(value).dtype.kind in "biufcV"  # V: bfloat16 and its like
    except (TypeError, ValueError):
        return isinstance(value, list | tuple)  # a ragged list, about which the function itself says more


def _is_key(value: Any) -> bool:
    if not isinstance(value, jax.Array | np.ndarray):
        return False
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return value.ndim == 0
    return value.dtype == np.uint32 and value.ndim == 1
