"""Search spaces: parameters, their unit coordinates, feature maps and candidates."""

from jlibo.tune.space.parameters import Categorical as Categorical
from jlibo.tune.space.parameters import Float as Float
from jlibo.tune.space.parameters import Int as Int
from jlibo.tune.space.parameters import Parameter as Parameter
from jlibo.tune.space.space import SearchSpace as SearchSpace
