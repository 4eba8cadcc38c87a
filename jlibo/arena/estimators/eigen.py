"""Eigenvalues and eigenvectors of a symmetric matrix by Jacobi rotations, in array operations.

LAPACK's `eigh` inside a scan can deadlock when many executions run at once. Here a round rotates disjoint
pairs of coordinates, all at once. After every round the coordinates move to the next pairing of a round-robin
tournament, so that a sweep of size - 1 rounds visits every pair. Convergence is quadratic; some six to ten
sweeps are enough.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jlibo.checks import check_count, check_shape, fail
from jlibo.front_door import front_door

HIGHEST = lax.Precision.HIGHEST
MAX_SWEEPS = 15


@front_door
def symmetric_eigen(
    matrix: Float[Array, "size size"],
) -> tuple[Float[Array, " size"], Float[Array, "size size"]]:
    """Return the eigenvalues of a symmetric matrix, largest first, and its eigenvectors as columns.

    **Arguments:**

    - `matrix`: symmetric.

    **Raises:** `ValueError` if it is not square.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import symmetric_eigen

    values, vectors = symmetric_eigen(jnp.asarray([[2.0, 1.0], [1.0, 2.0]]))
    print(values)  # [3. 1.]
    ```
    """
    size = matrix.shape[0]
    check_shape("matrix", matrix, (size, size))
    matrix = jnp.asarray(matrix)
    if size == 1:
        return matrix[0], jnp.ones_like(matrix)
    half = (size + 1) // 2
    # An odd size gets one more coordinate, which is never rotated because its products are zero.
    square = jnp.zeros((2 * half, 2 * half), matrix.dtype).at[:size, :size].set((matrix + matrix.T) / 2)
    order = _next_pairing(half)
    tolerance = (jnp.finfo(matrix.dtype).eps * jnp.abs(square).max()) ** 2

    def is_diagonal(square):
        return ((square - jnp.diag(jnp.diagonal(square))) ** 2).max() <= tolerance

    def play(_, state):
        square, vectors = state
        cos, sin = _rotations(square, half)

        def rotate(rows):  # of the pairs (i, i + half)
            first, second = rows[:half], rows[half:]
            return jnp.concatenate([cos * first - sin * second, sin * first + cos * second])[order]

        square = rotate(rotate(square).T)
        return square, rotate(vectors)

    def sweep(state):
        square, vectors, count = state
        square, vectors = lax.fori_loop(0, 2 * half - 1, play, (square, vectors))
        return (square + square.T) / 2, vectors, count + 1

    def proceed(state):
        return ~is_diagonal(state[0]) & (state[2] < MAX_SWEEPS)

    eye = jnp.eye(2 * half, dtype=matrix.dtype)
    square, vectors, _ = lax.while_loop(proceed, sweep, (square, eye, jnp.zeros((), jnp.int32)))
    # Whole sweeps return every coordinate to its place, so the additional one is the last.
    values, vectors = jnp.diagonal(square)[:size], vectors[:size, :size]
    descending = jnp.argsort(-values)
    return values[descending], vectors[descending].T


def _rotations(
    square: Float[Array, "size size"], half: int
) -> tuple[Float[Array, "half 1"], Float[Array, "half 1"]]:
    """Return cosine and sine of the rotations that annul the entries (i, i + half)."""
    diagonal, product = jnp.diagonal(square), jnp.diagonal(square, offset=half)
    difference = diagonal[half:] - diagonal[:half]
    is_zero = product == 0
    ratio = difference / jnp.where(is_zero, 1, 2 * product)
    tangent = jnp.where(ratio < 0, -1, 1) / (jnp.abs(ratio) + jnp.sqrt(1 + ratio**2))
    tangent = jnp.where(is_zero, 0, tangent)
    cos = 1 / jnp.sqrt(1 + tangent**2)
    return cos[:, None], (tangent * cos)[:, None]


def _next_pairing(half: int) -> np.ndarray:
    """Return where each place takes its coordinate from: one round of a round-robin tournament."""
    top, bottom = np.arange(half), half + np.arange(half)
    if half == 1:
        return np.arange(2)
    return np.concatenate([top[:1], bottom[:1], top[1:-1], bottom[1:], top[-1:]])


@front_door
def top_subspace(matrix: Float[Array, "size size"], rank: int) -> Float[Array, "size rank"]:
    """Return an orthonormal basis of the `rank` eigenvectors with the largest eigenvalues, as columns.

    **Arguments:**

    - `matrix`: symmetric.
    - `rank`: number of eigenvectors, from 1 to the size of the matrix.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import top_subspace

    print(top_subspace(jnp.diag(jnp.asarray([1.0, 3.0])), rank=1))  # [[0.] [1.]]
    ```
    """
    check_rank(rank, matrix.shape[-1])
    return symmetric_eigen(matrix)[1][:, :rank]


def check_rank(rank: int, num_features: int) -> None:
    """Refuse a rank outside of 1 to `num_features`."""
    check_count("rank", rank)
    if rank > num_features:
        fail("rank", f"at most the {num_features} features", rank)
