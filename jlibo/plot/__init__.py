"""How runs are drawn: the paper's figures, and what they leave out.

| here                    | paper                                                                       |
|-------------------------|-----------------------------------------------------------------------------|
| `plot_lifelong_regret`  | fig. "online": R(s, i) over all steps, vertical lines where tasks begin     |
| `plot_offline_regret`   | fig. "offline": single-task regret against the number of offline tasks      |
| `plot_support`          | J_hat_s over s, against J*                                                  |
| `plot_recovery`         | how often J_hat_s = J*                                                      |
| `plot_simple_regret`    | what a practitioner asks: how good is the best after i trials               |
| `plot_exploration_cost` | the regret of forced steps, the price of learning the kernel, and the rest  |

Every function takes results and an optional `Axes`, and returns the Axes it drew on: `ax=None` makes a new
figure. Nothing is shown, and no global setting is changed. `results` maps agents' names to `LifelongResult`s
with one leading axis of seeds, as `jax.vmap` over keys returns them: lines are means over seeds and bands one
standard error. A run without a seeds axis is drawn without a band, and one bare result is fine too.
"""

from jlibo.plot.curves import MAX_POINTS as MAX_POINTS
from jlibo.plot.curves import plot_exploration_cost as plot_exploration_cost
from jlibo.plot.curves import plot_lifelong_regret as plot_lifelong_regret
from jlibo.plot.curves import plot_offline_regret as plot_offline_regret
from jlibo.plot.curves import plot_recovery as plot_recovery
from jlibo.plot.curves import plot_simple_regret as plot_simple_regret
from jlibo.plot.curves import plot_support_size as plot_support_size
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
from jlibo.plot.support import plot_support as plot_support
from jlibo.plot.tuning import plot_importance as plot_importance
from jlibo.plot.tuning import plot_progress as plot_progress
