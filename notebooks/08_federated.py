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
# # Federated runs
#
# Three hospitals tune the same model, each on its own patients. They want to learn together which parameters
# matter, and show nobody a score or a configuration. In F-LiBO each finished task votes for the kernels that
# it needs, and a server counts. This notebook carries the messages by hand; the guide `docs/federated.md` has
# the rules, and what happens when something fails.

# %%
import os
import tempfile
from pathlib import Path

import numpy as np

import jlibo
from jlibo import privacy
from jlibo.federated import Announcement, BallotFile, BallotRules
from jlibo.plot import NotebookFigure
from jlibo.tune import confirm, new_votes, num_kernels, publish

small = os.environ.get("JLIBO_NOTEBOOK_SMALL") == "1"  # the test suite runs a small version
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## Clients
#
# A client is a user of the tuner with `mode="federated"`. Of four parameters two matter, and the best values
# differ between hospitals.

# %%
space = jlibo.SearchSpace(
    rate=jlibo.Float(1e-4, 1, log=True),
    depth=jlibo.Float(0, 1),
    dropout=jlibo.Float(0, 1),
    momentum=jlibo.Float(0, 1),
)


def score(best_rate, best_depth):
    def evaluate(rate, depth, dropout, momentum):
        return -((np.log10(rate) - best_rate) ** 2) - 12 * (depth - best_depth) ** 2 + 0.01 * dropout

    return evaluate


hospitals = {"north": (-2, 0.3), "east": (-2.5, 0.5), "south": (-1.5, 0.4)}
budget = 12 if small else 30
for name, best in hospitals.items():
    with jlibo.Tuner(space, folder / f"{name}.db", mode="federated") as tuner:
        for task in range(1 if small else 2):
            tuner.optimise(score(*best), task=f"patients {task}", budget=budget)

# %% [markdown]
# Each finished task becomes a vote. A vote has a random id and the indices of kernels, and nothing else.

# %%
votes = {name: new_votes(folder / f"{name}.db") for name in hospitals}
votes["north"][0].to_bytes()

# %% [markdown]
# ## The server
#
# The ballot is a file with rules that are declared before the first vote. A vote counts once, however often
# it arrives.

# %%
rules = BallotRules(
    num_kernels=num_kernels(space), alpha=0.5, horizon=100, num_explore=4, quorum=3, max_votes=10
)
with BallotFile.open(folder / "ballot.db", rules) as ballot:
    for name, sent in votes.items():
        data = [vote.to_bytes() for vote in sent]
        first, again = ballot.receive(name, data), ballot.receive(name, data)
        print(f"{name}: {first.num_counted} counted, sent again: {again.num_counted}")
        confirm(folder / f"{name}.db", first.receipt)
    announcement = ballot.announcement()
names = jlibo.tune.space_features(space).names
print("elected:", [names[kernel] for kernel in announcement.support])

# %% [markdown]
# The announcement goes back to the clients. A fourth hospital that has just joined starts with it: its tuner
# looks only for functions of the elected parameters.

# %%
with jlibo.Tuner(space, folder / "west.db", mode="federated") as tuner:
    publish(tuner.memory, Announcement.from_bytes(announcement.to_bytes()))
    tuner.optimise(score(-1.8, 0.6), task="patients", budget=budget)
    print([task.name for task in tuner.tasks], tuner.importance())

# %% [markdown]
# ## What privacy costs
#
# A vote can be protected with a stated epsilon: noise is added to the counts, whose transcript is private as
# a whole. The noise does not depend on the number of clients per election but only on the logarithm of the
# number of releases, so what matters is how many clients there are.

# %%
clients = np.asarray([20, 49, 100, 300, 1000, 3000, 10_000])
figure = NotebookFigure(figsize=(7, 3.6), layout="constrained")
axes = figure.subplots()
for epsilon in (1.0, 4.0):
    limits = dict(max_selected=10)
    toeplitz, fresh = [], []
    for number in clients.tolist():
        scale = privacy.toeplitz_scale(epsilon, 1e-5, horizon=number, **limits)
        toeplitz.append(scale * privacy.toeplitz_norm(number) / number)
        fresh.append(privacy.gnmax_scale(epsilon, 1e-5, horizon=number, **limits) / number)
    flip = privacy.flip_probability(epsilon, max_selected=10)
    local = np.sqrt(flip * (1 - flip) / clients) / (1 - 2 * flip)
    style = "-" if epsilon == 1 else "--"
    for label, values, colour in (
        ("Toeplitz", toeplitz, "#419d78"),
        ("GNMax", fresh, "#d33f49"),
        ("local", local, "#8a8a8a"),
    ):
        axes.loglog(clients, values, style, color=colour, label=f"{label}, epsilon {epsilon:g}")
axes.axhline(0.1, color="black", linewidth=0.8)
axes.set_xlabel("clients")
axes.set_ylabel("standard deviation of a share of votes")
axes.legend(fontsize=7)
figure

# %% [markdown]
# On lifelong-cosine, true kernels get about half of the votes and false ones a tenth, so a standard deviation
# of a tenth (the black line) is about what an election can bear. At the paper's 20 to 49 tasks, every curve
# is above it: privacy costs everything there. From about 300 clients at epsilon 4, and 1,000 at epsilon
# 1, the Toeplitz mechanism is nearly free. `jlibo reproduce federated-private` measures this on real runs.
