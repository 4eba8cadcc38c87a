"""The methods of the arena, by name."""

from jlibo.arena.method import Method
from jlibo.arena.methods import own

FAMILIES: tuple[tuple[Method, ...], ...] = (own.METHODS,)
"""The methods, family by family. A new family is added here."""

METHODS: dict[str, Method] = {method.name: method for family in FAMILIES for method in family}
"""The methods of the arena, by name."""
