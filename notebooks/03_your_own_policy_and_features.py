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
# # Your own policy, features, environment and meta-learner
#
# Five components of the lifelong loop can be replaced by your own. Each is a small class or a plain function
# that can be jitted and works under `vmap` over seeds. This notebook replaces all five in one example.
#
# **The example.** You tune the same system on one data set after another. It has eight knobs. Two of them
# matter, the same two in every task, but you do not know which.

# %%
import os
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import jlibo
from jlibo import plot
from jlibo.meta import MetaInfo

small = os.environ.get("JLIBO_NOTEBOOK_SMALL") == "1"  # the test suite runs a small version
num_seeds, num_tasks, horizon, num_candidates = (2, 3, 10, 50) if small else (10, 15, 60, 500)
keys = jax.random.split(jax.random.key(0), num_seeds)

# %% [markdown]
# ## Features, in groups
#
# A base kernel is a *group* of features. To learn which knobs matter, give each knob a group: here five
# overlapping bumps along that knob, which can represent any smooth curve. The model is then a sum of one
# curve per knob, and selecting kernels means selecting knobs.

# %%
num_knobs, num_bumps = 8, 5
centres = jnp.linspace(0, 1, num_bumps)


def bumps(point):
    heights = jnp.exp(-0.5 * ((point[:, None] - centres) / 0.2) ** 2)  # [knob, bump]
    heights /= jnp.linalg.norm(heights, axis=1, keepdims=True)  # so that k_j(x, x) = 1
    return heights.reshape(-1)


features = jlibo.FunctionFeatures(
    bumps,
    groups=np.repeat(np.arange(num_knobs), num_bumps),
    lower=[0.0] * num_knobs,
    upper=[1.0] * num_knobs,
    names=[f"knob {j}" for j in range(num_knobs)],
)
jlibo.check_bounded(features, key=jax.random.key(0))
print(features.num_groups, "groups of sizes", features.group_sizes)

# %% [markdown]
# ## An environment of plain functions
#
# `FunctionEnv` takes a function that returns the reward of one point given the parameters of a task, and a
# function that draws those parameters. Knobs 2 and 5 have a best value that changes slightly between tasks;
# the others have no effect.

# %%
true_support = np.isin(np.arange(num_knobs), [2, 5])


def reward(point, best):
    return 10 - 20 * jnp.abs(point[2] - best[0]) ** 1.5 - 20 * jnp.abs(point[5] - best[1]) ** 1.5


def draw_best(index, key):
    return jnp.asarray([0.3, 0.8]) + jax.random.uniform(key, (2,), minval=-0.15, maxval=0.15)


candidates = jlibo.sample_box(features, num_candidates, key=jax.random.key(1))
env = jlibo.FunctionEnv(candidates, reward, draw_best, noise_std=0.3)

# %% [markdown]
# ## A policy
#
# A policy scores points given the current belief; the loop plays the point with the highest score. This one
# is an upper confidence bound whose bonus decreases with the number of observations. `nu` is an array (not a
# Python number), so that it can be swept without recompilation.


# %%
class FadingUCB(jlibo.AbstractPolicy):
    nu: jax.Array = eqx.field(converter=jnp.asarray)
    noise_std: jax.Array = eqx.field(converter=jnp.asarray)

    def scores(self, belief, *, key):
        num_seen = belief.posterior.num_observations
        return belief.mean + self.nu / (1 + num_seen) ** 0.25 * belief.std


# %% [markdown]
# An agent that learns nothing between tasks, with this policy and with the constant `nu` of GP-UCB:

# %%
sizes = dict(num_tasks=num_tasks, horizon=horizon)


@eqx.filter_jit
def play_alone(policy):
    def one_seed(key):
        return jlibo.run_lifelong(env, features, policy, jlibo.FixedPrior(), **sizes, key=key)

    return jax.vmap(one_seed)(keys)


policies = {
    "GP-UCB, nu = 10": jlibo.GPUCB(nu=10.0, noise_std=0.3),
    "fading, nu = 20": FadingUCB(nu=20.0, noise_std=0.3),
}
ax = plot.plot_lifelong_regret({name: play_alone(policy) for name, policy in policies.items()})

# %% [markdown]
# ## An exploration schedule
#
# The meta-learners need some steps that are not chosen by the policy. By default each uses its schedule from
# the paper; any function `rate(task, horizon)` can replace it. Fractions accumulate until they make a whole
# step. The schedule below explores much in the first three tasks and hardly at all afterwards.

# %%
early = jlibo.CustomExploration(lambda task, horizon: horizon / 4 if task <= 3 else 0.5)
print("ours       ", early.counts(num_tasks, horizon))
print("the paper's", jlibo.DecreasingExploration().counts(num_tasks, horizon))

# %% [markdown]
# ## A meta-learner
#
# A meta-learner maps finished tasks to the `Prior` of the next: a mean and a covariance of the feature
# weights. It has four methods, and its state is any pytree of arrays. `update` adds one task and is used by
# the simulator; `learn` takes all past tasks at once and is used by a `Tuner`. This one is a simple form of
# empirical Bayes: it fits the weights of each task and uses their running mean and variance. Unlike Meta-KGL
# it learns *where* good values are, not only *which* knobs matter. It learns from every step, so it needs no
# forced exploration.


# %%
class RunningMoments(jlibo.AbstractMetaLearner):
    noise_std: float = 0.3
    exploration: jlibo.AbstractExploration = jlibo.NoExploration()
    data: ClassVar[str] = "all"  # learns from all steps of a task, not only from forced exploration

    def init(self, sizes):
        return jnp.zeros(()), jnp.zeros(sizes.num_features), jnp.zeros(sizes.num_features)

    def prior(self, state, sizes):
        count, total, squares = state
        mean = total / jnp.maximum(count, 1)
        variance = squares / jnp.maximum(count, 1) - mean**2
        # Shrink towards a variance of one with the weight of two tasks, for robustness with few tasks.
        return jlibo.Prior(mean, (count * variance + 2) / (count + 2))

    def update(self, state, data, sizes):
        weights = self.fit(data.features, data.rewards, sizes)
        return (state[0] + 1, state[1] + weights, state[2] + weights**2), self.info(sizes)

    def learn(self, past, num_done, sizes):
        # A task is stored as few rows with the same posterior; a row of zeros has no effect.
        weights = jax.vmap(lambda *rows: self.fit(*rows, sizes))(past.features, past.targets)
        is_done = past.is_done[:, None]
        state = past.is_done.sum(), (is_done * weights).sum(0), (is_done * weights**2).sum(0)
        return state, self.info(sizes)

    def fit(self, features, rewards, sizes):
        posterior = jlibo.posterior.init(jlibo.full_prior(sizes.groups), self.noise_std)
        rows = (features, rewards)
        posterior, _ = jax.lax.scan(lambda p, row: (jlibo.posterior.observe(p, *row), None), posterior, rows)
        return posterior.mean

    def info(self, sizes):
        everything = jnp.ones(sizes.num_groups, bool)  # it selects nothing: all kernels are used
        zero = jnp.zeros((), jnp.int32)
        return MetaInfo(everything, jnp.array(False), zero, jnp.zeros(()), zero)


# %% [markdown]
# ## All together
#
# Agents that differ in their meta-learner or exploration share the tasks, the noise and one compilation.

# %%
learners = {
    "oracle": jlibo.FixedPrior(jlibo.support_prior(true_support, features.groups)),
    "full": jlibo.FixedPrior(),
    "libo": jlibo.MetaKGL(lam=0.5, omega=0.25),
    "LiBO, early": jlibo.MetaKGL(lam=0.5, omega=0.25),
    "moments": RunningMoments(),
}


@jax.jit
@jax.vmap
def play_all(key):
    exploration = {"LiBO, early": early}
    policy = FadingUCB(nu=20.0, noise_std=0.3)
    return jlibo.run_agents(env, features, policy, learners, **sizes, exploration=exploration, key=key)


results = play_all(keys)
plot.figure_lifelong(results, true_support, "Two knobs of eight")

# %% [markdown]
# More than half of LiBO's regret comes from forced exploration. From the fourth task on, its regret per task
# is about that of the oracle. The selected kernels, by name:

# %%
ax = plot.plot_support(results["libo"], true_support=true_support, names=features.names)

# %% [markdown]
# ## A table instead of a function
#
# Past evaluations are often a table of tasks by configurations, with missing cells. `TableEnv` looks rewards
# up in the table. A missing cell (NaN) is never chosen, and regret is relative to the best existing cell.
# Here such a table is computed from the functions above, and a third of its cells are removed.

# %%
rng = np.random.default_rng(0)
tasks = [env.task(i, key=key) for i, key in enumerate(jax.random.split(jax.random.key(2), num_tasks))]
table = np.stack([task.values for task in tasks])
table[rng.uniform(size=table.shape) < 1 / 3] = np.nan
table_env = jlibo.TableEnv(table, candidates, noise_std=0.3)


@jax.jit
@jax.vmap
def play_table(key):
    order_key, run_key = jax.random.split(key)
    shuffled = table_env.shuffled(key=order_key)  # a different order of the tasks in each seed
    agents = {name: learners[name] for name in ("oracle", "moments")}
    policy = FadingUCB(nu=20.0, noise_std=0.3)
    return jlibo.run_agents(shuffled, features, policy, agents, **sizes, key=run_key)


table_results = play_table(keys)
ax = plot.plot_task_curves(table_results, "moments")

# %% [markdown]
# These components work with all others of the library: any policy, any meta-learner, any environment.
