"""Plots of runs: the figures of the paper, and further diagnostics.

| here                    | paper                                                                       |
|-------------------------|-----------------------------------------------------------------------------|
| `plot_lifelong_regret`  | fig. "online": R(s, i) over all steps, vertical lines where tasks begin     |
| `plot_offline_regret`   | fig. "offline": single-task regret against the number of offline tasks      |
| `plot_support`          | J_hat_s over s, against J*                                                  |
| `plot_recovery`         | how often J_hat_s = J*                                                      |
| `plot_simple_regret`    | not in the paper: regret of the best of the first i trials                  |
| `plot_exploration_cost` | not in the paper: regret of forced exploration, and of the policy's steps   |

Every function takes results and an optional `Axes`, and returns the Axes it drew on. `ax=None` makes a new
figure. Nothing is shown, and no global setting is changed. `results` maps agents' names to `LifelongResult`s
with one leading axis of seeds, as returned by `jax.vmap` over keys. Lines are means over seeds and bands are
one standard error. A run without a seeds axis is drawn without a band. A single `LifelongResult` is accepted
in place of a mapping.

```python
import jax

import jlibo

features = jlibo.Cosine(num_features=10)
env = jlibo.SyntheticEnv.draw(features, support_size=2, key=jax.random.key(0))
learners = {
    "full": jlibo.FixedPrior(jlibo.full_prior(features.groups)),
    "libo": jlibo.MetaKGL(lam=0.1, omega=0.25),
}


def run(key):
    policy = jlibo.GPUCB(nu=10.0, noise_std=0.1)
    return jlibo.run_agents(env, features, policy, learners, num_tasks=3, horizon=16, key=key)


results = jax.vmap(run)(jax.random.split(jax.random.key(1), 4))  # 4 seeds
ax = jlibo.plot.plot_lifelong_regret(results)
figure = jlibo.plot.figure_lifelong(results, env.support)
```
"""

from jlibo.plot.arena import figure_task_curves as figure_task_curves
from jlibo.plot.arena import plot_growth as plot_growth
from jlibo.plot.arena import plot_ratios as plot_ratios
from jlibo.plot.curves import MAX_POINTS as MAX_POINTS
from jlibo.plot.curves import plot_exploration_cost as plot_exploration_cost
from jlibo.plot.curves import plot_lifelong_regret as plot_lifelong_regret
from jlibo.plot.curves import plot_offline_regret as plot_offline_regret
from jlibo.plot.curves import plot_simple_regret as plot_simple_regret
from jlibo.plot.curves import plot_task_curves as plot_task_curves
from jlibo.plot.curves import plot_task_regret as plot_task_regret
from jlibo.plot.figures import figure_lifelong as figure_lifelong
from jlibo.plot.figures import figure_offline as figure_offline
from jlibo.plot.figures import figure_tuning as figure_tuning
from jlibo.plot.results import Results as Results
from jlibo.plot.style import AGENTS as AGENTS
from jlibo.plot.style import FEDERATED as FEDERATED
from jlibo.plot.style import META as META
from jlibo.plot.style import NAIVE as NAIVE
from jlibo.plot.style import ORACLE as ORACLE
from jlibo.plot.style import NotebookFigure as NotebookFigure
from jlibo.plot.style import display_name as display_name
from jlibo.plot.support import plot_recovery as plot_recovery
from jlibo.plot.support import plot_support as plot_support
from jlibo.plot.support import plot_support_size as plot_support_size
from jlibo.plot.tuning import plot_importance as plot_importance
from jlibo.plot.tuning import plot_progress as plot_progress
