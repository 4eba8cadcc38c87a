"""jlibo: lifelong Bayesian optimisation as pure functions of arrays and a key."""

from jlibo import posterior as posterior
from jlibo.features import AbstractFeatures as AbstractFeatures
from jlibo.features import Concatenate as Concatenate
from jlibo.features import Cosine as Cosine
from jlibo.features import Fourier as Fourier
from jlibo.features import FunctionFeatures as FunctionFeatures
from jlibo.features import Legendre as Legendre
from jlibo.features import Polynomial as Polynomial
from jlibo.features import Scaled as Scaled
from jlibo.features import box_grid as box_grid
from jlibo.features import check_bounded as check_bounded
from jlibo.features import max_kernel_diagonal as max_kernel_diagonal
from jlibo.features import normalise as normalise
from jlibo.features import sample_box as sample_box
from jlibo.group_lasso import Solution as Solution
from jlibo.group_lasso import Status as Status
from jlibo.group_lasso import group_lasso as group_lasso
from jlibo.group_lasso import group_lasso_path as group_lasso_path
from jlibo.group_lasso import lam_grid as lam_grid
from jlibo.group_lasso import lambda_max as lambda_max
from jlibo.policies import GPTS as GPTS
from jlibo.policies import GPUCB as GPUCB
from jlibo.policies import OFUL as OFUL
from jlibo.policies import AbstractPolicy as AbstractPolicy
from jlibo.policies import BoxMaximum as BoxMaximum
from jlibo.policies import ExpectedImprovement as ExpectedImprovement
from jlibo.policies import Greedy as Greedy
from jlibo.policies import TheoreticalNu as TheoreticalNu
from jlibo.policies import Uniform as Uniform
from jlibo.policies import choose as choose
from jlibo.policies import maximise as maximise
from jlibo.posterior import Belief as Belief
from jlibo.posterior import Posterior as Posterior
from jlibo.prior import Prior as Prior
from jlibo.prior import full_prior as full_prior
from jlibo.prior import support_prior as support_prior

__version__ = "0.1.0"
