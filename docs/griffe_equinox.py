"""A griffe extension: signatures of equinox modules, whose `__init__` is made at run time."""

import importlib
import inspect
from typing import Any

import equinox as eqx
import griffe


class EquinoxSignatures(griffe.Extension):
    """Gives every equinox module without an `__init__` of its own the one that equinox makes."""

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        if "__init__" in cls.members:
            return
        try:
            found = importlib.import_module(cls.module.path)
        except ImportError:
            return  # an integration whose library is not installed here
        for name in cls.path.removeprefix(f"{cls.module.path}.").split("."):
            found = getattr(found, name, None)
        if not (isinstance(found, type) and issubclass(found, eqx.Module)) or inspect.isabstract(found):
            return
        parameters = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
        for name, parameter in list(inspect.signature(found.__init__).parameters.items())[1:]:
            field, default = cls.members.get(name), parameter.default
            parameters.append(
                griffe.Parameter(
                    name,
                    annotation=field.annotation if isinstance(field, griffe.Attribute) else None,
                    kind=griffe.ParameterKind[parameter.kind.name.lower()],
                    default=None if default is inspect.Parameter.empty else _words(default),
                )
            )
        init = griffe.Function("__init__", parameters=griffe.Parameters(*parameters), returns="None")
        cls.set_member("__init__", init)


def _words(default: Any) -> str:
    """A default as a reader would write it."""
    return f"{default:g}" if hasattr(default, "shape") and default.shape == () else repr(default)
