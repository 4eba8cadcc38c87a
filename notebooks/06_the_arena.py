# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The arena
#
# What can tasks share? A few kernels, as in the paper; or a subspace; or a normal prior. Every method was
# designed for one of these answers. `jlibo.arena` runs all of them on all answers, with the same draws, and
# says what each method is told. The guide `docs/arena.md` has the full results; this notebook has three
# environments, shorter than there, and a method for each answer.

# %%
import os

import numpy as np

import jlibo
from jlibo import plot
from jlibo.arena import ENVIRONMENTS, METHODS, PRIVILEGES, Method, SequentialAgent, claims_table, run_arena

small = os.environ.get("JLIBO_NOTEBOOK_SMALL") == "1"  # the test suite runs a small version

# %% [markdown]
# ## Who knows what
#
# A method receives the facts on its card, and no others. LiBO knows the noise, a bound on the norm and the
# horizon. AdaTS knows how the tasks spread around their mean. OLS-SVD knows the rank.

# %%
names = ["independent", "libo", "ablr-ard", "em-full", "adats", "ols-svd"]
for name in names:
    method = METHODS[name]
    told = ", ".join(PRIVILEGES[privilege] for privilege in method.card)
    print(f"{name}: {method.summary}\n    is told or needs: {told}")

# %% [markdown]
# ## Three worlds
#
# `sparse-grid` is the paper's: tasks share five of fifty kernels. In `low-rank-ball` they share a subspace of
# three dimensions in ten. In `gaussian-arms` their weights are close to a mean that nobody knows.

# %%
sizes = {"sparse-grid": (12, 60), "low-rank-ball": (20, 150), "gaussian-arms": (10, 100)}
sizes = dict.fromkeys(sizes, (2, 6)) if small else sizes
environments = [
    ENVIRONMENTS[name].sized(num_tasks=num_tasks, horizon=horizon)
    for name, (num_tasks, horizon) in sizes.items()
]
result = run_arena([METHODS[name] for name in names], environments, num_seeds=2 if small else 8)

# %% [markdown]
# Regret per task relative to the oracle, which knows the true prior. 1 is as good as the oracle. A cell is
# empty where a method lacks a fact: normal weights have no rank, and there is no hyper-prior outside of the
# normal world.

# %%
rows = [method.name for method in result.methods]
columns = [environment.name for environment in result.environments]
figure = plot.NotebookFigure(figsize=(6, 4), layout="constrained")
plot.plot_ratios(result.ratios(), rows, columns, figure.subplots())
figure

# %% [markdown]
# ## From task to task
#
# The first tasks cost everyone about the same. What a method learned shows in the last ones.

# %%
regret = {}
for environment in columns:
    played = {name: result.task_regret(name, environment) for name in rows}
    regret[environment] = {name: values for name, values in played.items() if values is not None}
plot.figure_task_curves(regret)

# %% [markdown]
# ## Does the excess fall to the oracle's?
#
# The paper calls a method oracle optimal if its regret per task converges to that of its oracle. Here is the
# excess in the first and in the last quarter of the tasks, with standard errors over seeds.

# %%
for environment in columns:
    for name in names:
        score = result.score(name, environment)
        if score is not None:
            early, late = (f"{part.mean:8.2f} +- {part.error:.2f}" for part in (score.early, score.late))
            print(f"{environment:15} {name:12} first {early}   last {late}   (oracle: {score.oracle})")

# %% [markdown]
# ## Claims and measurements
#
# The paper's tables 1 to 3 are data, and stand beside what was measured.

# %%
print(claims_table(result))

# %% [markdown]
# All numbers are labelled arrays, for analyses of your own.

# %%
labelled = result.labelled()
last = np.asarray(labelled.sel(method="libo")["sparse-grid"])[:, -1]
print(labelled)
print("LiBO, last sparse task:", np.round(last, 1))

# %% [markdown]
# ## A method of your own
#
# A method has a card and makes an agent from the facts on it. This one knows the law of the weights of a task
# that was never seen before, and plays the best action of the posterior mean.


# %%
def make_greedy(facts, sizes):
    return SequentialAgent(jlibo.FixedPrior(facts.marginal), jlibo.Greedy(facts.noise_std))


greedy = Method(
    name="greedy",
    summary="Greedy play for each task alone.",
    reference="",
    card=("noise_std", "marginal"),
    make=make_greedy,
)
arms = ENVIRONMENTS["gaussian-arms"].sized(num_tasks=2 if small else 10, horizon=6 if small else 100)
print(run_arena([METHODS["independent"], greedy], [arms], num_seeds=2 if small else 8).table())
