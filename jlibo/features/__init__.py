"""Feature maps and their groups: the base kernels and their domains.

| here | paper |
|---|---|
| features(x)[groups == j] | phi_j(x), the feature map of group j |
| its inner product, x with x' | k_j(x, x'), base kernel j, with k_j(x, x) <= 1 |
| group_sizes[j] | d_j |
| num_groups, num_features | p, d |
| the box from `lower` to `upper` | X, the domain |
"""

from jlibo.features.base import AbstractFeatures as AbstractFeatures
from jlibo.features.bounds import box_grid as box_grid
from jlibo.features.bounds import box_midpoints as box_midpoints
from jlibo.features.bounds import check_bounded as check_bounded
from jlibo.features.bounds import max_kernel_diagonal as max_kernel_diagonal
from jlibo.features.bounds import normalise as normalise
from jlibo.features.bounds import sample_box as sample_box
from jlibo.features.combine import Concatenate as Concatenate
from jlibo.features.combine import FunctionFeatures as FunctionFeatures
from jlibo.features.combine import Scaled as Scaled
from jlibo.features.combine import Unpenalised as Unpenalised
from jlibo.features.maps import Cosine as Cosine
from jlibo.features.maps import Fourier as Fourier
from jlibo.features.maps import Legendre as Legendre
from jlibo.features.maps import Polynomial as Polynomial
from jlibo.groups import validate_groups as validate_groups
