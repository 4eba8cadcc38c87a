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
# # The theory, computed
#
# The paper proves that Meta-KGL finds the right kernels, and that LiBO's regret approaches the oracle's.
# `jlibo.theory` computes these statements with their constants. This notebook asks what they say at the
# paper's own numbers, follows one proof from its assumption to its bound, and puts bounds beside
# measurements. The guide `docs/theory.md` has all symbols, and the places where the paper's text slips.

# %%
import os

import jax
import jax.numpy as jnp
import numpy as np

import jlibo
from jlibo import theory
from jlibo.experiments import find, run_experiment, summarise
from jlibo.plot import NotebookFigure
from jlibo.plot import theory as figures

small = os.environ.get("JLIBO_NOTEBOOK_SMALL") == "1"  # the test suite runs a small version

# %% [markdown]
# ## A plan at the paper's numbers
#
# Thirty tasks, fifty cosines of which five are used, c_1 = 0.5 and noise 0.1. The theorem needs more than
# 16,384 rows a task; the paper's experiments have 10, and work. The guarantee is a worst case.

# %%
plan = theory.plan(
    num_tasks=30, horizon=100, noise_std=0.1, norm=10.0, beta_min=0.5, num_kernels=50, support_size=5
)
print(plan)

# %% [markdown]
# ## Assumption 3.2: are the data informative?
#
# kappa measures how well the rows tell the kernels apart. It is an infimum over supports and directions, so
# it is bracketed: from below by the Gram matrix, from above by a direction that a search finds. With few rows
# there is a direction that the data cannot see at all. With many, kappa approaches sqrt(z / s*), where z is
# the mean square of a feature.

# %%
features, support_size = jlibo.Cosine(12), 2
mean_square, inner = theory.map_moments(features)
limit = theory.population_kappa(mean_square, support_size)
rows = (4, 64) if small else (4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
brackets = []
for count in rows:
    points = jlibo.sample_box(features, count, key=jax.random.key(count))
    brackets.append(theory.kappa_bracket(features(points)[None], support_size, key=jax.random.key(0)))
    print(f"{count:5} rows: kappa between {brackets[-1].lower:.3f} and {brackets[-1].upper:.3f}")
print(f"limit: {limit:.3f}")

# %%
figure = NotebookFigure(figsize=(5.6, 3.6), layout="constrained")
ax = figure.subplots()
lower, upper = [float(one.lower) for one in brackets], [float(one.upper) for one in brackets]
ax.fill_between(rows, lower, upper, alpha=0.3, label="bracket of one design")
proved = theory.exploration_kappa(jnp.asarray(rows, float), 12, support_size, mean_square, 0.1)
ax.plot(rows, proved, "--", label="proved for 90 % of designs (Prop. 4.3)")
ax.axhline(float(limit), color="grey", linewidth=0.8, label="limit")
ax.set(xscale="log", xlabel="uniform rows", ylabel="kappa")
ax.legend(fontsize="small")
figure

# %% [markdown]
# ## Theorem 3.3: from kappa to a probability
#
# The signal, omega-bar kappa^2 sqrt(n) / (32 sigma), must exceed 1. Then the probability of a wrong support
# falls exponentially in the number of tasks, and grows only linearly in the number of kernels. Rows help
# twice: through kappa and through the signal.

# %%
numbers = dict(beta_min=0.5, omega=0.25, kappa=limit, noise_std=0.02)
print("rows that the theorem needs:", round(float(theory.least_rows(**numbers))))
for num_tasks in (1, 10, 100):
    needed = theory.rows_needed(0.05, num_tasks, 12, **numbers)
    print(f"{num_tasks:4} tasks need {needed:6.0f} rows each for a probability of 95 %")
for num_kernels in (12, 120, 1200, 12_000):
    needed = theory.tasks_needed(0.05, 500, num_kernels, **numbers)
    print(f"{num_kernels:6} kernels need {needed:5.1f} tasks of 500 rows")

# %% [markdown]
# ## The same, measured
#
# `theory-recovery` runs Meta-KGL with the theorem's lam and counts how often it selects exactly the right
# kernels. The vertical line is the number of rows that the theorem needs.

# %%
experiment = find("theory-recovery")
if small:
    few = {f"rows_{number}": count for number, count in enumerate((2, 3, 4, 6, 8, 12), 1)}
    experiment = experiment.changed({"num_features": 5, "num_tasks": 2, "offline_rows": 12, **few})
recovery = summarise(run_experiment(experiment, num_seeds=2 if small else 20))["analysis"]
figures.figure_recovery(recovery)

# %%
for place, count in enumerate(recovery["rows"]):
    low, high = recovery["kappa"][place]
    print(
        f"{count:4} rows: measured {recovery['measured'][place][-1]:4.0%}, bounds "
        f"{recovery['worst_case'][place][-1]:4.0%} (worst case) and {recovery['own_design'][place]:4.0%} "
        f"(this design), kappa between {low:.2f} and {high:.2f}"
    )

# %% [markdown]
# ## How much forced exploration?
#
# The paper observes that some exploration is better than none, and leaves open how much is needed.
# `theory-exploration` multiplies the schedule by 0, 1/8, ..., 2, for GP-UCB; `-ts` and `-logei` do the same
# for Thompson sampling and log expected improvement.

# %%
experiment = find("theory-exploration-ts")
if small:
    experiment = experiment.changed({"num_features": 5, "num_tasks": 3, "horizon": 9, "support_size": 2})
exploration = summarise(run_experiment(experiment, num_seeds=2 if small else 20))["analysis"]
figures.figure_exploration(exploration, "Thompson sampling")

# %% [markdown]
# ## lam and omega without knowing the constants
#
# Nobody knows c_1, s*, kappa and the noise of a new problem. Noise and s* can be estimated even with fewer
# rows than features, because tasks share a few kernels. The upper end of kappa's bracket then gives the
# theorem's lam for an omega, half of the smallest coefficient that matters.

# %%
design_key, noise_key = jax.random.split(jax.random.key(2))
num_tasks, num_rows = (4, 8) if small else (12, 8)
design = features(jlibo.sample_box(features, num_tasks * num_rows, key=design_key))
design = design.reshape(num_tasks, num_rows, 12)
noise = 0.1 * jax.random.normal(noise_key, (num_tasks, num_rows))
targets = design @ (2.0 * jnp.eye(12)[3] - jnp.eye(12)[7]) + noise
estimate = theory.estimate_noise(design, targets)
print(f"noise {estimate.noise_std:.3f}, with {estimate.freedom:.0f} degrees of freedom; the truth is 0.1")
lam = theory.noise_lam(num_rows, num_tasks, 12, noise_std=estimate.noise_std, delta=0.1)
print(f"lam {lam:.3f}, omega {theory.penalty_omega(lam, num_tasks, mean_square):.3f}")
lower, upper = theory.lam_bracket(design, 2, beta_min=0.5, omega=0.25)
print(f"Theorem 3.3 allows lam up to {upper:.4f}, and proves something up to {lower:.4f}")
learner = jlibo.MetaKGL(1 / 8, 0.25, lam_scaling="bracket")  # what we recommend

# %% [markdown]
# ## The report of a run
#
# After a run, `report_run` puts what was measured beside what the theorems say about the exploration data
# that the run collected.

# %%
key = jax.random.key(0)
env = jlibo.SyntheticEnv.draw(features, support_size=2, noise_std=0.02, key=key)
policy, libo = jlibo.GPUCB(nu=10.0, noise_std=0.1), jlibo.MetaKGL(lam=0.1, omega=0.25)
num_tasks, horizon = (2, 16) if small else (10, 400)
result = jlibo.run_lifelong(env, features, policy, libo, num_tasks=num_tasks, horizon=horizon, key=key)
assumed = dict(noise_std=0.02, norm=10.0, beta_min=0.5, support_size=2, true_support=env.support)
print(theory.report_run(result, features, env.candidates, **assumed, key=key))

# %% [markdown]
# ## Do the confidence bands hold?
#
# `measure_coverage` plays tasks and compares f with the band at every step and candidate. A band that may
# fail with probability 10 % should leave f outside in at most 10 % of the tasks. "ellipsoid" is the width of
# `jlibo.OFUL`, "kernel" that of `jlibo.TheoreticalNu`, which is proved for lambda_ucb^2 = 1 + 2 / n. LiBO
# plays its first tasks with kernels that may lack one that is used; then no width holds.

# %%
env = jlibo.SyntheticEnv.draw(
    features, support_size=2, norm_bound=1.0, beta_min=0.1, noise_std=0.1, key=jax.random.key(1)
)
agents = {
    "true kernels": jlibo.FixedPrior(fixed_prior=jlibo.support_prior(env.support, features.groups)),
    "all kernels": jlibo.FixedPrior(),
    "LiBO": jlibo.MetaKGL(lam=0.05, omega=0.05),
}
bands = (("ellipsoid", 0.1), ("kernel", 0.1), ("kernel", (1 + 2 / 40) ** 0.5))
for width, regulariser in bands[:1] if small else bands:
    found = theory.measure_coverage(
        env,
        features,
        jlibo.GPUCB(nu=2.0, noise_std=regulariser),
        agents,
        coef_norm=1.0,
        width=width,
        num_tasks=2 if small else 50,
        horizon=8 if small else 40,
        key=key,
    )
    shares = ", ".join(f"{name} {float(np.mean(one.left)):.0%}" for name, one in found.items())
    print(f"{width} width, lambda_ucb = {regulariser:.2f}: outside in {shares} of the tasks")
