"""The exact Gaussian posterior over feature weights, with one rank-one update per observation.

| here                | paper (App. "Background on GP-UCB")                                      |
|---------------------|--------------------------------------------------------------------------|
| `noise_std`         | lambda_ucb, the regulariser                                              |
| `predict`           | mu_i(x) and sigma_i^2(x), in weight space: equal to the kernel formulas  |
| `information_gain`  | 1/2 log det(I + K_i / lambda_ucb^2) of the points observed               |

The covariance is kept as a factor S with S S^T = covariance and updated by Potter's rule. A variance is then
a sum of squares, so it cannot become negative, even in float32 after thousands of updates. An update costs
O(features^2), plus O(candidates * features) where mean and variance are tracked on a finite candidate set.
Nothing is factorised again, and no shape grows. All arrays have the precision of the prior, whatever the
precision of the features and rewards.

Two limits of floating point are handled here. The variance tracked on candidates is a difference: its
absolute error stays while the variance shrinks. In long runs it is therefore recomputed from the factor every
512 observations (`jlibo.belief.candidates.REFRESH_STEPS`). Noise that is too small or too large beside the
prior variance (`jlibo.belief.prior.noise_limits`) is refused, or clipped to the limit if it is traced.

```python
import jax

import jlibo

features = jlibo.Cosine(num_features=10)
points = jlibo.box_grid(features, 100)
state = jlibo.posterior.init(jlibo.full_prior(features.groups), noise_std=0.1)
state = jlibo.posterior.observe(state, features(points[3]), reward=0.7)
mean, variance = jlibo.posterior.predict(state, features(points))
draw = jlibo.posterior.sample(state, features(points), key=jax.random.key(0))
```
"""

from jlibo.belief.candidates import Belief as Belief
from jlibo.belief.candidates import belief_at as belief_at
from jlibo.belief.candidates import condition as condition
from jlibo.belief.candidates import condition_pending as condition_pending
from jlibo.belief.candidates import observe_candidate as observe_candidate
from jlibo.belief.candidates import observe_pending as observe_pending
from jlibo.belief.weights import Posterior as Posterior
from jlibo.belief.weights import held_noise as held_noise
from jlibo.belief.weights import init as init
from jlibo.belief.weights import observe as observe
from jlibo.belief.weights import predict as predict
from jlibo.belief.weights import sample as sample
from jlibo.belief.weights import sample_weights as sample_weights
from jlibo.belief.weights import update as update
