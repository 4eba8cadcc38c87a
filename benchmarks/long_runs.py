"""How many of the latest past tasks a learner should keep (`max_past`), in long runs and after a change.

    python benchmarks/long_runs.py [--quick] [--json FILE]

The tasks are those of `lifelong-cosine`. The agents are LiBO with the recommended penalty,
`MetaKGL(1 / 8, 0.25, lam_scaling="bracket")`, and differ in the number of past tasks that they keep. In the
first tables all tasks have the same support. In the last one another support is drawn after half of them.

| column      | what it is                                                                            |
|-------------|---------------------------------------------------------------------------------------|
| regret      | sum over the tasks, mean over seeds with its standard error                           |
| F1          | of the selected kernels against the true ones, after each of the last third of tasks  |
| found       | tasks after the change until the selection is the new support for the first time      |
"""

import os

os.environ.setdefault("NPROC", "4")

import harness
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import jlibo

SIZES = dict(
    num_tasks=300, horizon=100, num_features=50, num_seeds=6, kept=(16, 32, 64, 128, None), chosen=64
)
QUICK = dict(num_tasks=6, horizon=12, num_features=8, num_seeds=2, kept=(2, 3, None), chosen=3)
"""Sizes of the runs, numbers of past tasks to keep (None for all), and the number that the aims are about."""
MOST_REGRET, MOST_FOUND = 1.05, 1.1
"""Aims for the chosen number, with all data: regret over that with all past tasks, and the tasks until a new
support is found over the number of tasks that are kept."""
NOTES = """\
With all data, a few dozen tasks determine the kernels. With the data of forced exploration alone, late tasks
have two or three rows each, and the latest do not replace those that are forgotten. With all tasks, the
kernels of an old support stay selected after a change, because their norms are over all tasks."""
WORDS = dict(exploration="data of forced exploration", all="all data")


class ChangingEnv(jlibo.AbstractEnv):
    """Tasks of the first environment before task number `change`, of the second from then on."""

    first: jlibo.SyntheticEnv
    second: jlibo.SyntheticEnv
    change: Array

    @property
    def candidates(self):
        return self.first.candidates

    @property
    def noise_std(self):
        return self.first.noise_std

    def task(self, index, *, key):
        tasks = self.first.task(index, key=key), self.second.task(index, key=key)
        return jax.tree.map(lambda one, other: jnp.where(index < self.change, one, other), *tasks)


def play(data, size, *, changes):
    """Return regret [seed, task], support and true support [seed, task, kernel] of each agent."""
    features = jlibo.Cosine(size["num_features"])
    support_size = min(5, size["num_features"] // 4)
    change = size["num_tasks"] // 2 if changes else size["num_tasks"]

    def one(key):
        first_key, second_key, run_key = jax.random.split(key, 3)
        first, second = (
            jlibo.SyntheticEnv.draw(features, support_size=support_size, key=one)
            for one in (first_key, second_key)
        )
        agents = {
            str(most): jlibo.MetaKGL(1 / 8, 0.25, data=data, lam_scaling="bracket", tol=1e-5, max_past=most)
            for most in size["kept"]
        }
        results = jlibo.run_agents(
            ChangingEnv(first, second, jnp.asarray(change)),
            features,
            jlibo.GPUCB(nu=10.0, noise_std=0.1),
            agents,
            num_tasks=size["num_tasks"],
            horizon=size["horizon"],
            key=run_key,
        )
        is_early = (jnp.arange(size["num_tasks"]) < change)[:, None]
        true = jnp.where(is_early, first.support, second.support)
        return {name: (result.regret.sum(1), result.support, true) for name, result in results.items()}

    keys = jax.random.split(jax.random.key(0), size["num_seeds"])
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(keys))


def f1_of(support, true):
    """Return the F1 score of each selection."""
    right = (support & true).sum(-1)
    return 2 * right / np.maximum(support.sum(-1) + true.sum(-1), 1)


def mean_and_error(values):
    return values.mean(), values.std(ddof=1) / np.sqrt(len(values))


def long_table(data, size):
    """Return the table of runs whose support stays the same, and the regret by the number of kept tasks."""
    results = play(data, size, changes=False)
    last, rows, regrets = size["num_tasks"] // 3, [], {}
    for most in size["kept"]:
        regret, support, true = results[str(most)]
        mean, error = mean_and_error(regret.sum(1))
        late = f1_of(support, true)[:, -last:].mean()
        regrets[most] = float(mean)
        rows.append(["all" if most is None else most, f"{mean:,.0f} ± {error:,.0f}", f"{late:.3f}"])
    title = f"{size['num_tasks']} tasks, learning from {WORDS[data]}"
    return dict(title=title, header=["kept", "regret", "F1"], rows=rows), regrets


def change_table(size):
    """Return the table of runs whose support changes, and the medians of `found` by number of kept tasks."""
    results = play("all", size, changes=True)
    half, last, rows, medians = size["num_tasks"] // 2, size["num_tasks"] // 3, [], {}
    for most in size["kept"]:
        regret, support, true = results[str(most)]
        mean, error = mean_and_error(regret[:, half:].sum(1))
        is_found = (support == true).all(-1)[:, half:]
        found = np.where(is_found.any(1), is_found.argmax(1) + 1, np.inf)
        medians[most] = float(np.median(found))
        late = f1_of(support, true)[:, -last:].mean()
        words = "never" if np.isinf(medians[most]) else harness.number(medians[most])
        rows.append(["all" if most is None else most, f"{mean:,.0f} ± {error:,.0f}", f"{late:.3f}", words])
    title = f"{size['num_tasks']} tasks, the support changes after {half}, learning from all data"
    header = ["kept", "regret after the change", "F1", "found, median"]
    return dict(title=title, header=header, rows=rows), medians


def main():
    options = harness.arguments(__doc__).parse_args()
    size = QUICK if options.quick else SIZES
    exploration, _ = long_table("exploration", size)
    everything, regrets = long_table("all", size)
    changing, found = change_table(size)
    most = size["chosen"]
    result = dict(
        benchmark="long_runs",
        quick=options.quick,
        machine=harness.describe_machine(),
        tables=[exploration, everything, changing],
        aims=[
            harness.aim(
                f"regret with the latest {most} tasks over that with all, learning from all data",
                MOST_REGRET,
                regrets[most] / regrets[None],
                at_most=True,
            ),
            harness.aim(
                f"tasks until a new support is found with the latest {most} tasks, over {most}",
                MOST_FOUND,
                found[most] / most if np.isfinite(found[most]) else None,
                at_most=True,
            ),
        ],
        notes=NOTES,
    )
    harness.report(result, options.json)


if __name__ == "__main__":
    main()
