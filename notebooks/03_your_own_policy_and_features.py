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
# The lifelong loop has five places to put something of your own. Each is a small class or a plain function,
# jittable, and gets `vmap` over seeds for free. We fill all five around one story.
#
# **The story.** You tune the same system again and again, on one data set after another. It has eight knobs.
# Two of them matter, always the same two, but you do not know which.

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

small = os.environ.get("JLIBO_NOTEBOOK_SMALL") == "1"  # the test suite plays a tiny version
num_seeds, num_tasks, horizon, num_candidates = (2, 3, 10, 50) if small else (10, 15, 60, 500)
keys = jax.random.split(jax.random.key(0), num_seeds)

# %% [markdown]
# ## Features, in groups
#
# A base kernel is a *group* of features. To ask "which knobs matter?", give each knob a group: here five
# overlapping bumps along that knob, enough for any smooth curve. The model is then a sum of one curve for
# each knob, and selecting kernels is selecting knobs.

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
# `FunctionEnv` takes a reward for one point and the parameters of a task, and a function that draws those
# parameters. Knobs 2 and 5 have a best setting that moves a little from task to task; the others do nothing.

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
# A policy scores points from the current belief; the loop plays the highest score. This one is an upper
# confidence bound whose optimism fades as observations come in. Keeping `nu` an array (not a Python number)
# lets you sweep it without compiling again.


# %%
class FadingUCB(jlibo.AbstractPolicy):
    nu: jax.Array = eqx.field(converter=jnp.asarray)
    noise_std: jax.Array = eqx.field(converter=jnp.asarray)

    def scores(self, belief, *, key):
        num_seen = belief.posterior.num_observations
        return belief.mean + self.nu / (1 + num_seen) ** 0.25 * belief.std


# %% [markdown]
# Played by an agent that learns nothing between tasks, against the constant optimism of GP-UCB:

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
# The meta-learners need some steps that are not the policy's choice. By default each asks for its schedule
# from the paper; say otherwise with any `rate(task, horizon)`. Fractions are saved up until they make a whole
# step. Ours studies hard for three tasks and then hardly at all.

# %%
early = jlibo.CustomExploration(lambda task, horizon: horizon / 4 if task <= 3 else 0.5)
print("ours       ", early.counts(num_tasks, horizon))
print("the paper's", jlibo.DecreasingExploration().counts(num_tasks, horizon))

# %% [markdown]
# ## A meta-learner
#
# A meta-learner turns finished tasks into the `Prior` of the next: a mean and a covariance of the feature
# weights. It has four methods, and its state is any tree of arrays: `update` adds one task, as the simulator
# does, and `learn` takes all past tasks at once, as a `Tuner` does. This one is empirical Bayes at its
# simplest: fit the weights of each task, then use their running mean and variance. Unlike Meta-KGL it learns
# *where* the good settings are, not only *which* knobs have one; and as it learns from every step, it asks
# for no forced exploration.


# %%
class RunningMoments(jlibo.AbstractMetaLearner):
    noise_std: float = 0.3
    exploration: jlibo.AbstractExploration = jlibo.NoExploration()
    data: ClassVar[str] = "all"  # it looks at all steps of a task, not at forced exploration alone

    def init(self, sizes):
        return jnp.zeros(()), jnp.zeros(sizes.num_features), jnp.zeros(sizes.num_features)

    def prior(self, state, sizes):
        count, total, squares = state
        mean = total / jnp.maximum(count, 1)
        variance = squares / jnp.maximum(count, 1) - mean**2
        # Two tasks' worth of doubt, so that a few lucky tasks do not settle the matter.
        return jlibo.Prior(mean, (count * variance + 2) / (count + 2))

    def update(self, state, data, sizes):
        weights = self.fit(data.features, data.rewards, sizes)
        return (state[0] + 1, state[1] + weights, state[2] + weights**2), self.info(sizes)

    def learn(self, past, num_done, sizes):
        # A task is kept as few rows with the same posterior; a row of zeros says nothing.
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
        everything = jnp.ones(sizes.num_groups, bool)  # it selects nothing: all kernels stay in use
        zero = jnp.zeros((), jnp.int32)
        return MetaInfo(everything, jnp.array(False), zero, jnp.zeros(()), zero)


# %% [markdown]
# ## All together
#
# Agents that differ in their meta-learner or exploration share tasks, noise and one compilation.

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
# More than half of LiBO's regret is the forced part, and from the fourth task on a task costs it about as
# much as it costs the oracle. The kernels behind it, by name:

# %%
ax = plot.plot_support(results["libo"], true_support=true_support, names=features.names)

# %% [markdown]
# ## A table instead of a function
#
# Past evaluations are often a table: tasks by configurations, with holes. `TableEnv` plays them by look-up;
# a missing cell (NaN) is never chosen, and regret is measured against the best cell that exists. Here we
# make such a table from the functions above and lose a third of it.

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
    shuffled = table_env.shuffled(key=order_key)  # each seed meets the tasks in another order
    agents = {name: learners[name] for name in ("oracle", "moments")}
    policy = FadingUCB(nu=20.0, noise_std=0.3)
    return jlibo.run_agents(shuffled, features, policy, agents, **sizes, key=run_key)


table_results = play_table(keys)
ax = plot.plot_task_curves(table_results, "moments")

# %% [markdown]
# Everything here also works with the library's other parts: any policy, any meta-learner, any environment.
