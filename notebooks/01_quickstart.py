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
# # Quickstart
#
# Suppose that you optimise one expensive function after another, and that these functions are similar: all of
# them are combinations of the same few out of many *base kernels*. A lifelong optimiser learns from finished
# tasks which base kernels these are, and uses this knowledge in each new task.
#
# This notebook runs a lifelong experiment, plots it, and then shows what the result contains.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jlibo
from jlibo import metrics, plot

small = os.environ.get("JLIBO_NOTEBOOK_SMALL") == "1"  # the test suite runs a small version
num_seeds, num_tasks, horizon, num_kernels = (2, 4, 12, 8) if small else (10, 20, 100, 50)

# %% [markdown]
# ## A first experiment
#
# The tasks are those of the paper: functions on [0, 1] that are combinations of 5 out of 50 cosines, with a
# different 5 in each seed. LiBO is GP-UCB with a kernel learned by Meta-KGL, and F-LiBO is its federated
# version. They are compared with an agent that uses all 50 kernels and with an oracle that knows the 5. The
# whole experiment is a pure function of one key, so `vmap` runs ten experiments.

# %%
features = jlibo.Cosine(num_kernels)
policy = jlibo.GPUCB(nu=10.0, noise_std=0.1)
sizes = dict(num_tasks=num_tasks, horizon=horizon)


def experiment(key):
    env_key, run_key = jax.random.split(key)
    env = jlibo.SyntheticEnv.draw(features, support_size=5, key=env_key)
    agents = {
        "oracle": jlibo.FixedPrior(jlibo.support_prior(env.support, features.groups)),
        "full": jlibo.FixedPrior(),
        "libo": jlibo.MetaKGL(lam=0.5, omega=0.25),
        "flibo": jlibo.FederatedMetaKGL(lam=0.2, omega=0.25, alpha=0.25),
    }
    return jlibo.run_agents(env, features, policy, agents, **sizes, key=run_key), env.support


keys = jax.random.split(jax.random.key(0), num_seeds)
results, true_support = jax.jit(jax.vmap(experiment))(keys)
ax = plot.plot_lifelong_regret(results)

# %% [markdown]
# Each thin vertical line marks the start of a task; bands are one standard error over seeds. The two learners
# begin each task with a few steps of forced exploration, which are the small jumps. The learned kernel
# reduces the regret of the remaining steps.
#
# ## What the result contains
#
# There is one `LifelongResult` for each agent. Its arrays have the axes seeds, tasks and steps, without
# averages.

# %%
libo = results["libo"]
for field in ("regret", "actions", "rewards", "explored", "num_explore", "support", "fell_back", "gap"):
    print(f"{field:12} {getattr(libo, field).shape!s:16} {getattr(libo, field).dtype}")

# %% [markdown]
# `support` has the kernels that were selected after each task. `gap` is the duality gap of the group lasso
# behind that selection, an upper bound on the distance to the optimal objective. `fell_back` marks an empty
# selection, after which the next task uses all kernels. `jlibo.metrics` computes summary numbers from these,
# and `plot.figure_lifelong` draws a summary.

# %%
for name, result in results.items():
    mean, error = metrics.mean_and_standard_error(metrics.lifelong_regret(result)[:, -1])
    recovered = metrics.recovery(result, true_support)[:, -1].mean()
    words = f"{plot.display_name(name):12} regret {mean:6.0f} ± {error:4.0f}"
    print(f"{words}   true kernels found in {recovered:4.0%} of seeds")

# %%
plot.figure_lifelong(results, true_support, f"{num_tasks} tasks of {horizon} steps, {num_seeds} seeds")

# %% [markdown]
# ## A sweep is one more `vmap`
#
# Hyper-parameters are arrays, not constants of the program, so a sweep over `lam` is traced and compiled
# once. Here every value of `lam` runs with every seed, in one batch.

# %%
num_traces = 0


def lifelong_regret(lam, key):
    global num_traces
    num_traces += 1
    env_key, run_key = jax.random.split(key)
    env = jlibo.SyntheticEnv.draw(features, support_size=5, key=env_key)
    learner = jlibo.MetaKGL(lam=lam, omega=0.25)
    result = jlibo.run_lifelong(env, features, policy, learner, **sizes, key=run_key)
    return result.regret.sum()


lams = jnp.asarray([0.1, 0.5] if small else [0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0])
sweep = jax.jit(jax.vmap(jax.vmap(lifelong_regret, in_axes=(None, 0)), in_axes=(0, None)))
regret = sweep(lams, keys)  # [lam, seed]
print(f"{regret.size} lifelong runs, {num_traces} trace")

# %%
mean, error = metrics.mean_and_standard_error(regret.T)
figure, ax = plt.subplots(figsize=(5, 3.2), layout="constrained")
ax.errorbar(lams, mean, error, color=plot.META, marker="o", capsize=3)
ax.set(xscale="log", xlabel="lam", ylabel="lifelong regret", ylim=(0, None), title="LiBO")
ax.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# ## Stop and resume
#
# Tasks may be weeks apart. The argument `tasks` runs a part of the tasks. The result's `carry`, a pytree of
# arrays, is all that the next part needs. Two halves give the same numbers as one run, bit for bit.

# %%
env = jlibo.SyntheticEnv.draw(features, support_size=5, key=jax.random.key(1))
half = num_tasks // 2


def play(tasks, carry=None):
    learner = jlibo.MetaKGL(lam=0.5, omega=0.25)
    key = jax.random.key(2)
    return jlibo.run_lifelong(env, features, policy, learner, **sizes, tasks=tasks, carry=carry, key=key)


first = play(range(half))
second = play(range(half, num_tasks), carry=first.carry)
whole = play(range(num_tasks))
print("the same:", np.array_equal(np.concatenate([first.regret, second.regret]), whole.regret))

# %% [markdown]
# Next: `02_reproduce_the_paper` has the paper's figures, and `03_your_own_policy_and_features` shows how to
# write your own components.
