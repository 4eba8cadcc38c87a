"""Random group-lasso problems of a few fixed shapes for the solver's tests, so that each shape compiles once.

Tasks and rows vary through the mask. Groups are static arguments of the solver, so they vary only by layout.
"""

from typing import NamedTuple

import jax
import numpy as np

from jlibo import group_lasso
from tests import reference

NUM_TASKS, NUM_ROWS = 3, 8

GROUP_SIZES = {
    "mixed": (1, 2, 3, 4, 5, 6, 7),  # 28 features: the working set holds all of them
    "wide": (1, 2, 3, 4, 5, 6, 7, 7, 3, 2),  # 40 features: the first working set has 16
    "single": (1,) * 32,
}
LAYOUTS = tuple(GROUP_SIZES)


class Problem(NamedTuple):
    design: np.ndarray
    targets: np.ndarray
    mask: np.ndarray
    groups: np.ndarray | None

    def cast(self, dtype):
        return self._replace(design=self.design.astype(dtype), targets=self.targets.astype(dtype))

    @property
    def lambda_max(self):
        return reference.group_lasso_lambda_max(self.design, self.targets, self.groups, self.mask)

    @property
    def at_zero(self):
        """The objective of the zero solution, (1/N) ||y||^2: the unit of `tol`."""
        return float(np.mean(self.targets[self.mask].astype(np.float64) ** 2))

    def objective(self, coef, lam):
        return reference.group_lasso_objective(
            self.design, self.targets, lam, self.groups, self.mask, np.asarray(coef)
        )

    def gap(self, coef, lam):
        return reference.group_lasso_gap(
            self.design, self.targets, lam, self.groups, self.mask, np.asarray(coef)
        )

    def predictions(self, coef):
        return np.einsum("mnd,md->mn", self.design, np.asarray(coef))[self.mask]


def layout(name):
    """Group ids of interleaved features; None for one feature per group."""
    if name == "single":
        return None
    sizes = GROUP_SIZES[name]
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))


def make_problem(name, seed, collinear=True):
    """Random problem with tasks of unequal sizes, 1e3 in absent rows, and exact copies of columns.

    Layouts with groups also have columns that differ from others by 1e-6. In groups of one, such columns make
    a problem that takes every solver minutes.
    """
    rng = np.random.default_rng([seed, LAYOUTS.index(name)])
    groups = layout(name)
    raw = reference.random_problem(
        rng, NUM_TASKS, NUM_ROWS, GROUP_SIZES[name], collinear=collinear and groups is not None
    )
    ids = np.arange(len(raw["groups"])) if groups is None else groups
    order = np.argsort(raw["groups"], kind="stable")[np.argsort(np.argsort(ids, kind="stable"))]
    design = raw["design"][:, :, order]
    if collinear and groups is None:
        design[:, :, :3] = design[:, :, 20:23]
    return Problem(design, raw["targets"], raw["mask"], groups)


def solve(problem, lam, **options):
    options = dict(tol=1e-12, max_steps=100_000) | options
    return group_lasso(
        problem.design, problem.targets, lam, groups=problem.groups, mask=problem.mask, **options
    )


def stack(problems):
    """Problems of one layout as a batch."""
    fields = zip(*(problem[:3] for problem in problems), strict=True)
    return Problem(*(np.stack(field) for field in fields), problems[0].groups)


def assert_same(one, other, tol=1e-12):
    """Solutions equal up to round-off."""
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(left, right, rtol=100 * tol, atol=tol)
