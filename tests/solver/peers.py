"""The group-lasso problem as one block-diagonal matrix, solved by celer and by skglm.

A group is one base kernel's features across all tasks: with m tasks, group j has m * d_j columns of the
block-diagonal matrix. Columns are ordered group by group. Peers minimise 1/(2N) ||.||^2 + alpha * sum ||.||,
so alpha = lam / 2 gives our solution. Peers are imported only when called.
"""

from typing import NamedTuple

import numpy as np
from scipy import sparse


class BlockProblem(NamedTuple):
    """The permuted block-diagonal problem; `column_of[m, d]` is the column of feature d of task m."""

    matrix: np.ndarray | sparse.csc_matrix
    targets: np.ndarray
    group_starts: np.ndarray
    column_of: np.ndarray

    def coef(self, flat):
        """Return a peer's flat coefficients as coef[m, d]."""
        return np.asarray(flat)[self.column_of]


def block_problem(design, targets, groups=None, mask=None, dense=False):
    """Build the matrix directly as compressed sparse columns, or dense in Fortran order."""
    num_tasks, num_rows, num_features = np.shape(design)
    groups = np.arange(num_features) if groups is None else np.asarray(groups)
    mask = np.ones((num_tasks, num_rows), bool) if mask is None else np.asarray(mask, bool)
    order = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups) * num_tasks
    group_starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    column_of = np.empty((num_tasks, num_features), np.int32)
    seen = np.zeros(len(sizes), int)
    for feature in order:
        start = group_starts[groups[feature]] + seen[groups[feature]] * num_tasks
        column_of[:, feature] = start + np.arange(num_tasks)
        seen[groups[feature]] += 1
    row_of = np.cumsum(mask.ravel()).reshape(mask.shape) - 1
    shape = (int(mask.sum()), num_tasks * num_features)
    if dense:
        matrix = np.zeros(shape, order="F")
        for task in range(num_tasks):
            matrix[np.ix_(row_of[task, mask[task]], column_of[task])] = design[task][mask[task]]
    else:
        rows = np.broadcast_to(row_of[:, :, None], np.shape(design))[mask]
        columns = np.broadcast_to(column_of[:, None, :], np.shape(design))[mask]
        values = np.asarray(design, np.float64)[mask]
        matrix = sparse.csc_matrix((values.ravel(), (rows.ravel(), columns.ravel())), shape=shape)
        matrix.sort_indices()
    return BlockProblem(matrix, np.asarray(targets, np.float64)[mask], group_starts, column_of)


def celer_fit(problem, lam, tol):
    """Run celer's group-lasso path at one alpha on a given matrix; return (flat coef, duality gap).

    `tol` is relative to ||y||^2 / N. Dense matrices are faster: for sparse ones celer computes group norms in
    Python loops over pairs of columns. celer's gap is doubled to be that of our objective.
    """
    from celer import celer_path

    sizes = [int(size) for size in np.diff(problem.group_starts)]
    _, coefs, gaps = celer_path(
        problem.matrix, problem.targets, "grouplasso", alphas=[lam / 2], groups=sizes, tol=tol, max_iter=1_000
    )
    return coefs[:, 0], 2 * gaps[0]


def skglm_fit(problem, lam, tol):
    """Run skglm's block coordinate descent on a given matrix; return the flat coef.

    `tol` is absolute and bounds the distance to the subdifferential. The first call takes seconds to compile.
    """
    from skglm.datafits import QuadraticGroup
    from skglm.penalties import WeightedGroupL2
    from skglm.solvers import GroupBCD

    starts = problem.group_starts
    indices = np.arange(problem.matrix.shape[1], dtype=np.int32)
    penalty = WeightedGroupL2(lam / 2, np.ones(len(starts) - 1), starts, indices)
    solver = GroupBCD(max_iter=1_000, max_epochs=1_000, tol=tol)
    return solver.solve(problem.matrix, problem.targets, QuadraticGroup(starts, indices), penalty)[0]


def celer_solve(design, targets, lam, groups=None, mask=None, tol=1e-12):
    """coef[m, d] by celer."""
    problem = block_problem(design, targets, groups, mask, dense=True)
    return problem.coef(celer_fit(problem, lam, tol)[0])


def skglm_solve(design, targets, lam, groups=None, mask=None, tol=1e-10):
    """coef[m, d] by skglm."""
    problem = block_problem(design, targets, groups, mask, dense=True)
    return problem.coef(skglm_fit(problem, lam, tol))
