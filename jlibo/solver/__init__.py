"""The group lasso over tasks: a solver by proximal gradient and Newton steps, with a duality gap."""

from jlibo.solver.group_lasso import group_lasso as group_lasso
from jlibo.solver.group_lasso import group_lasso_path as group_lasso_path
from jlibo.solver.group_lasso import lam_grid as lam_grid
from jlibo.solver.group_lasso import lambda_max as lambda_max
from jlibo.solver.solution import Solution as Solution
from jlibo.solver.solution import Status as Status
