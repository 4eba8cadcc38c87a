"""The derivative of the group lasso's solution, by the implicit function theorem."""

import jax
import jax.numpy as jnp
import numpy as np

from jlibo.solver.proximal import Problem
from jlibo.solver.scaled_problem import ProblemData, group_norms, scaled_problem
from jlibo.solver.units import exponent_near, times_power_of_two


def implicit_gradients(ids, data: ProblemData, coef, cotangent) -> ProblemData:
    """Return the cotangents of `design`, `targets` and `lam`, given the cotangent of the solution `coef`.

    Differentiates the optimality condition of the groups in the support. The cotangent enters linearly, so it
    is scaled to magnitudes near one as well.
    """
    problem, units, _ = scaled_problem(data, ids)
    coef = times_power_of_two(coef, -units.coef)
    group_of = np.arange(coef.shape[1]) if ids is None else np.asarray(ids)
    used = group_norms(coef, ids)[group_of] > 0
    right = jnp.where(used, cotangent, 0)
    size = exponent_near(right)

    def objective(coef, design, targets, lam):
        at = Problem(design, targets, lam, problem.num_rows, problem.groups)
        loss = (at.residual(coef) ** 2).sum() / at.num_rows
        return loss + lam * group_norms(coef, ids).sum()

    def optimality(coef, *args):
        return jnp.where(used, jax.grad(objective)(coef, *args), 0)

    args = (problem.scaled_design(), problem.targets, problem.lam)

    def hessian_times(direction):
        direction = jnp.where(used, direction, 0)
        return jax.jvp(lambda at: optimality(at, *args), (coef,), (direction,))[1]

    right = times_power_of_two(right, -size)
    accuracy = float(jnp.finfo(coef.dtype).eps) ** 0.75
    adjoint, _ = jax.scipy.sparse.linalg.cg(hessian_times, right, tol=accuracy, maxiter=10 * coef.size)
    _, pull_back = jax.vjp(lambda *args: optimality(coef, *args), *args)
    bars = pull_back(-adjoint)
    design_bar, targets_bar, lam_bar = (
        times_power_of_two(bar, units.coef + size - unit)
        for bar, unit in zip(bars, (units.design, units.targets, units.lam), strict=True)
    )
    if data.mask is not None:
        design_bar = jnp.where(data.mask[:, :, None], design_bar, 0)
        targets_bar = jnp.where(data.mask, targets_bar, 0)
    return ProblemData(design_bar, targets_bar, None, lam_bar)
