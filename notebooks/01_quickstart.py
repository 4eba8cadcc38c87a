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
# You optimise one expensive function after another, and you suspect that they are alike: out of many possible
# ingredients (*base kernels*), all of them use the same few. A lifelong optimiser finds out which few from
# the tasks it has already finished, and so starts each new task a little wiser.
#
# This notebook goes from nothing to a lifelong run and its picture, then looks at what the run left behind.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jlibo
from jlibo import metrics, plot

small = os.environ.get("JLIBO_NOTEBOOK_SMALL") == "1"  # the test suite plays a tiny version
num_seeds, num_tasks, horizon, num_kernels = (2, 4, 12, 8) if small else (10, 20, 100, 50)

# %% [markdown]
# ## Ten lines
#
# The tasks are the paper's: functions on [0, 1] made of 5 out of 50 cosines, another 5 in each seed. LiBO,
# which is GP-UCB with a kernel learned by Meta-KGL, and its federated sibling F-LiBO face an agent that uses
# all 50 and an oracle that knows the 5. The whole experiment is a pure function of one key, so `vmap` makes
# it ten experiments.

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
# Each thin vertical line starts a task; bands are one standard error over seeds. The two learners begin each
# task with a few forced exploration steps, the small jumps. What they learn from them flattens the rest.
#
# ## What the result holds
#
# One `LifelongResult` for each agent. Arrays keep their axes: seeds, then tasks, then steps. Nothing is
# averaged away.

# %%
libo = results["libo"]
for field in ("regret", "actions", "rewards", "explored", "num_explore", "support", "fell_back", "gap"):
    print(f"{field:12} {getattr(libo, field).shape!s:16} {getattr(libo, field).dtype}")

# %% [markdown]
# `support` says which kernels were selected after each task, `gap` certifies the group lasso behind that
# selection (a duality gap: how far from the optimum it can be at most), and `fell_back` admits that a
# selection was empty, so that the next task was played with all kernels. `jlibo.metrics` turns these into
# numbers, and `plot.figure_lifelong` into a summary.

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
# once. Here every value of `lam` meets every seed, in one batch.

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
# ## Stop, and go on
#
# Tasks may be weeks apart. `tasks` plays a part of the run; the result's `carry` is all that the next part
# needs, a tree of arrays to keep wherever you like. Two halves are the whole, bit for bit.

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
# Next: `02_reproduce_the_paper` for the paper's figures, and `03_your_own_policy_and_features` to put your
# own parts into the loop.
