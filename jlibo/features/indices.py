"""Enumerations of frequency and degree vectors, in the order in which the maps number their features.

All are lazy and visit only vectors that they yield, so the first fifty in six dimensions cost fifty steps.
"""

import itertools
from collections.abc import Iterator

from jlibo.checks import fail

IndexVector = tuple[int, ...]


def first_indices(
    count: int, dim: int, *, least: int, most: int | None = None, argument: str = "num_features"
) -> tuple[IndexVector, ...]:
    """Return the first `count` vectors with entries least..most, by their sum, then lexicographically."""
    if most is not None and count > (most - least + 1) ** dim:
        fail(argument, f"at most {(most - least + 1) ** dim}, all there are with entries <= {most}", count)
    totals = itertools.count(dim * least)
    vectors = (v for total in totals for v in _compositions(total, dim, least, most))
    return tuple(itertools.islice(vectors, count))


def first_half_space(count: int, dim: int) -> tuple[IndexVector, ...]:
    """Return the first `count` nonzero integer vectors whose first nonzero entry is positive.

    Ordered by the sum of absolute values, then lexicographically. Exactly one of k and -k is listed.
    """
    vectors = (v for total in itertools.count(1) for v in _half_space(total, dim))
    return tuple(itertools.islice(vectors, count))


def monomial_powers(dim: int, degree: int, max_interaction: int, *, by_variables: bool) -> list[IndexVector]:
    """Return the exponents of all monomials of total degree 1..degree in at most `max_interaction` variables.

    The order is x1, x2, x1^2, x1 x2, x2^2, ...: by degree, then x1 before x2. With `by_variables`, monomials
    in the same set of variables are adjacent: main effects first, then pairs.
    """
    powers = []
    for num_variables in range(1, min(max_interaction, degree, dim) + 1):
        for variables in itertools.combinations(range(dim), num_variables):
            block = []
            for total in range(num_variables, degree + 1):
                for parts in _compositions(total, num_variables, 1, None):
                    power = [0] * dim
                    for variable, part in zip(variables, parts, strict=True):
                        power[variable] = part
                    block.append(tuple(power))
            powers += sorted(block, key=_degree_order)
    return powers if by_variables else sorted(powers, key=_degree_order)


def _degree_order(power: IndexVector) -> tuple[int, ...]:
    return (sum(power), *(-part for part in power))


def _compositions(total: int, dim: int, least: int, most: int | None) -> Iterator[IndexVector]:
    """Yield the vectors with entries least..most that sum to `total`, in lexicographic order."""
    if most is not None and total > dim * most:
        return
    if dim == 1:
        yield (total,)
        return
    start, stop = least, total - (dim - 1) * least
    if most is not None:
        start, stop = max(start, total - (dim - 1) * most), min(stop, most)
    for first in range(start, stop + 1):
        for rest in _compositions(total - first, dim - 1, least, most):
            yield (first, *rest)


def _half_space(total: int, dim: int) -> Iterator[IndexVector]:
    """Yield the vectors of `_signed` whose first nonzero entry is positive."""
    if dim == 1:
        yield (total,)
        return
    for first in range(total + 1):
        rests = _signed(total - first, dim - 1) if first else _half_space(total, dim - 1)
        for rest in rests:
            yield (first, *rest)


def _signed(total: int, dim: int) -> Iterator[IndexVector]:
    """Yield the integer vectors whose absolute values sum to `total`, in lexicographic order."""
    if dim == 1:
        yield from ((-total,), (total,)) if total else ((0,),)
        return
    for first in range(-total, total + 1):
        for rest in _signed(total - abs(first), dim - 1):
            yield (first, *rest)
