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
# # Tune a model on many data sets
#
# Suppose that you fit the same model to one data set after another and tune it from scratch each time. The
# data sets have something in common: the same parameters matter, and good configurations lie in the same
# region. `jlibo.Tuner` stores every trial in a file, learns from it which parameters matter and where to look
# first, and needs fewer trials the more tasks it has seen.
#
# Here the model is scikit-learn's logistic regression with an elastic-net penalty, on eight real problems.

# %%
import os
import tempfile
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn import datasets
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import jlibo

small = os.environ.get("JLIBO_NOTEBOOK_SMALL") == "1"  # the test suite runs a small version
num_rows, max_iter, budget, num_tasks = (60, 20, 4, 3) if small else (200, 300, 20, 8)

# %% [markdown]
# ## Eight problems
#
# The data come with scikit-learn, so that nothing is downloaded. Each problem has two classes and at most 200
# rows. With so few rows the penalty matters.


# %%
def problem(loader, keep=None, is_positive=None):
    """Rows of the classes in `keep`, and whether each is positive."""
    rows, labels = loader(return_X_y=True)
    if keep is not None:
        rows, labels = rows[np.isin(labels, keep)], labels[np.isin(labels, keep)]
    positive = is_positive(labels)
    chosen = np.random.default_rng(0).permutation(len(rows))[:num_rows]
    return rows[chosen], positive[chosen]


problems = {
    "breast cancer": problem(datasets.load_breast_cancer, None, lambda y: y == 0),
    "wine, 1 or not": problem(datasets.load_wine, None, lambda y: y == 0),
    "iris": problem(datasets.load_iris, (1, 2), lambda y: y == 1),
    "diabetes": problem(datasets.load_diabetes, None, lambda y: y > np.median(y)),
    "digits, 3 or 8": problem(datasets.load_digits, (3, 8), lambda y: y == 3),
    "digits, odd or even": problem(datasets.load_digits, None, lambda y: y % 2 == 1),
    "wine, 2 or 3": problem(datasets.load_wine, (1, 2), lambda y: y == 1),
    "digits, 1 or 7": problem(datasets.load_digits, (1, 7), lambda y: y == 1),
}
problems = dict(list(problems.items())[:num_tasks])
for name, (rows, positive) in problems.items():
    print(f"{name:20} {rows.shape[0]:4} rows {rows.shape[1]:3} columns {positive.mean():4.0%} positive")

# %% [markdown]
# ## What is tuned
#
# The score is the log loss in five-fold cross-validation: lower is better. There are three parameters: the
# strength of the penalty (`C`, small means strong), the share of the absolute value in it (`l1_ratio`), and
# the solver's tolerance, which we expect not to matter.


# %%
def log_loss(data, C, l1_ratio, tol):
    rows, positive = data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the solver warns when it stops early, as `tol` may cause
        model = LogisticRegression(
            solver="saga",
            penalty="elasticnet",
            C=C,
            l1_ratio=l1_ratio,
            tol=tol,
            max_iter=max_iter,
            random_state=0,
        )
        folds = StratifiedKFold(5, shuffle=True, random_state=0)
        scores = cross_val_score(
            make_pipeline(StandardScaler(), model), rows, positive, cv=folds, scoring="neg_log_loss"
        )
    return -scores.mean()


space = jlibo.SearchSpace(
    C=jlibo.Float(1e-4, 1e2, log=True),
    l1_ratio=jlibo.Float(0, 1),
    tol=jlibo.Float(1e-4, 1e-1, log=True),
)

# %% [markdown]
# ## Ask and tell
#
# A tuner has a space and a memory. A task has a name and a budget. `for trial in task` asks for one trial
# after another; `task.tell` stores its score. Every score is on the disk before `tell` returns, so a crash
# loses at most the running trial.

# %%
folder = Path(tempfile.mkdtemp())
memory = folder / "elastic_net.db"

with jlibo.Tuner(space, memory=memory, maximise=False) as tuner:
    for name, data in problems.items():
        with tuner.task(name, budget=budget) as task:
            for trial in task:
                task.tell(trial, log_loss(data, **trial.params))
        best = task.best
        print(
            f"{name:20} log loss {best.score:.4f} with C = {best.params['C']:.3g}, "
            f"l1_ratio = {best.params['l1_ratio']:.2f}"
        )

# %% [markdown]
# ## Comparison with tuning from scratch
#
# The same again without a memory: a new tuner for each problem. For both we count the number of trials until
# the log loss is within 2 % of the best one that either of them found.

# %%
alone = {}
for name, data in problems.items():
    with jlibo.Tuner(space, maximise=False) as single:
        with single.task(name, budget=budget) as task:
            for trial in task:
                task.tell(trial, log_loss(data, **trial.params))
        alone[name] = [trial.score for trial in task.trials]

with jlibo.Tuner(space, memory=memory, maximise=False) as tuner:
    together = {name: [trial.score for trial in tuner.task(name).trials] for name in problems}


def trials_needed(scores, goal):
    reached = np.flatnonzero(np.minimum.accumulate(scores) <= goal)
    return int(reached[0]) + 1 if reached.size else None


needed = {}
print(f"{'trials needed':20} {'with memory':>12} {'without':>12}")
for name in problems:
    goal = 1.02 * min(together[name] + alone[name])
    needed[name] = trials_needed(together[name], goal), trials_needed(alone[name], goal)
    words = [str(count) if count else f"> {budget}" for count in needed[name]]
    print(f"{name:20} {words[0]:>12} {words[1]:>12}")

# %%
figure, ax = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
places = np.arange(len(problems))
for shift, column, colour, label in ((-0.2, 0, "#419d78", "with memory"), (0.2, 1, "#d33f49", "without")):
    heights = [counts[column] or budget for counts in needed.values()]
    ax.bar(places + shift, heights, width=0.38, color=colour, label=label)
ax.set_xticks(places, [str(number) for number in range(1, len(problems) + 1)])
ax.set_xlabel("task, in the order in which they came")
ax.set_ylabel("trials until within 2 % of the best")
ax.spines[["top", "right"]].set_visible(False)
_ = ax.legend(frameon=False)
# %% [markdown]
# The first task has no past, so the two columns are equal. In our run the memory is ahead in five of the
# seven later tasks, often by far, and behind in two. Eight problems are few, and single counts vary by
# chance; docs/results.md has the same comparison on 49 data sets.
#
# ## What was learned
#
# `importance` returns the share of the differences between scores, over all tasks, that each parameter
# accounts for, and each pair of parameters beyond its two members. Parameters that are "not selected" explain
# nothing beyond the others.

# %%
tuner = jlibo.Tuner(space, memory=memory, maximise=False)  # opened again, with the same state
for name, share in tuner.importance().items():
    print(f"{name:20} {share:5.1%}")
ax = tuner.plot_importance()
# %% [markdown]
# The strength of the penalty matters most. The tolerance, which we expected not to matter, has a small
# effect: a loose one stops the solver early, which acts like a penalty. The kind of penalty, which is often
# tuned, makes hardly any difference on these data.
#
# The progress of each task, from pale for the first to dark for the last:

# %%
ax = tuner.plot_progress()
# %% [markdown]
# `jlibo memory show elastic_net.db` shows the same on the command line. `jlibo memory export` writes all
# trials as text, one line each.
#
# ## Results from elsewhere
#
# The tuner also learns from trials that were run without it, for example by a grid search. They contain no
# forced exploration, so the guarantee of the paper does not cover what is learned from them; in practice they
# are as good.

# %%
grid = [{"C": C, "l1_ratio": l1, "tol": 1e-3} for C in (0.01, 0.1, 1.0, 10.0) for l1 in (0.1, 0.9)]
data = problem(datasets.load_digits, (4, 9), lambda y: y == 4)
tuner.add_task("digits, 4 or 9", grid, [log_loss(data, **params) for params in grid])
print(len(tuner.memory.tasks()), "tasks in the memory")

# %% [markdown]
# ## A task that differs from the others
#
# Here the labels are shuffled: there is nothing to learn, and the best penalty is the strongest. Past tasks
# suggest a weak one. The first trials follow the past. Then the predictions turn out to be wrong, and the
# tuner relies on the observations of this task instead.

# %%
rows, positive = problems["breast cancer"]
nonsense = rows, np.random.default_rng(1).permutation(positive)
with tuner.task("nonsense", budget=budget) as task:
    for trial in task:
        task.tell(trial, log_loss(nonsense, **trial.params))
for trial in task.trials[:3] + task.trials[-3:]:
    print(f"trial {trial.number:2}  C = {trial.params['C']:8.4g}   log loss {trial.score:.3f}")
print(f"best      C = {task.best.params['C']:8.4g}   log loss {task.best.score:.3f}")
tuner.close()

# %% [markdown]
# ## With Optuna
#
# `LiBOSampler` is an Optuna sampler, so that existing studies and dashboards can be kept. With `memory` it
# learns from the tasks above before the first trial, and the study becomes one more task in the same file.

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Optuna warns if notebook widgets are missing; they are not needed
    import optuna

from jlibo.integrations.optuna import LiBOSampler

optuna.logging.set_verbosity(optuna.logging.ERROR)
data = problem(datasets.load_digits, (5, 6), lambda y: y == 5)


def objective(trial):
    C = trial.suggest_float("C", 1e-4, 1e2, log=True)
    l1_ratio = trial.suggest_float("l1_ratio", 0, 1)
    tol = trial.suggest_float("tol", 1e-4, 1e-1, log=True)
    return log_loss(data, C, l1_ratio, tol)


study = optuna.create_study(
    study_name="digits, 5 or 6", direction="minimize", sampler=LiBOSampler(memory=memory, seed=0)
)
study.optimize(objective, n_trials=budget // 2)
values = [trial.value for trial in study.trials]
print(f"first trial {values[0]:.4f}, best of {len(values)} trials {study.best_value:.4f}")
print({name: f"{value:.3g}" for name, value in study.best_params.items()})

# %% [markdown]
# ## Notes
#
# - A trial without a finite score (NaN, or an exception after which you call `task.fail(trial)`) is stored
#   and not repeated. The model is not conditioned on it.
# - `task.ask(4)` returns four different trials to evaluate in parallel; tell their scores in any order.
# - Several processes may share one memory. A trial that a killed process left pending is returned again.
# - Scores may have any scale, which may differ between tasks: they are standardised by the task's own data.
# - The first `ask` compiles the model, which takes some seconds; after that a call takes milliseconds.
