"""The tuner without a past beside random search, on synthetic functions of 2, 8 and 16 parameters.

    python benchmarks/first_day.py [--quick] [--json FILE]

Regret is best minus best so far, over best minus median of 4,000 random points. The best is the best of these
points, so that a tuner may end below zero. Random search is the mean of 50 runs per function, so that a seed
is a pair of the tuner's run and this mean on the same function.
"""

import os

os.environ.setdefault("NPROC", "4")

import harness
import numpy as np

import jlibo

MARKS = (1, 3, 5, 10, 15, 20, 30, 50)
KINDS = ("quadratic", "rotated", "ackley", "few", "bump")
ALLOWED = 2.0
"""Paired standard errors by which the tuner may be behind."""


def draw_function(kind, dim, rng):
    """Return a function on the unit cube with its optimum away from the corners."""
    centre, widths = rng.uniform(0.15, 0.85, dim), rng.uniform(0.2, 1.5, dim) ** 2
    rotation, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
    chosen = rng.choice(dim, min(3, dim), replace=False)

    def quadratic(x):
        return -(widths * (x - centre) ** 2).sum(-1)

    def rotated(x):
        return -(widths * ((x - centre) @ rotation.T) ** 2).sum(-1)

    def ackley(x):
        distance = np.sqrt(((10 * (x - centre)) ** 2).mean(-1))
        waves = np.cos(6 * np.pi * (x - centre)).mean(-1)
        return 20 * np.exp(-0.2 * distance) + np.exp(waves)

    def few(x):
        inside = x[..., chosen]
        wave = 0.3 * np.sin(6 * inside[..., 0] * inside[..., -1])
        return wave - np.abs(inside - centre[chosen]).sum(-1)

    def bump(x):
        return np.exp(-((x - centre) ** 2).sum(-1) / (0.15 * dim))

    return dict(quadratic=quadratic, rotated=rotated, ackley=ackley, few=few, bump=bump)[kind]


def play(kind, dim, seed, num_trials):
    """Return the regret of the tuner and of random search after each trial, and the tuner's points."""
    rng = np.random.default_rng((seed, dim, KINDS.index(kind)))
    function = draw_function(kind, dim, rng)
    values = function(rng.uniform(size=(4000, dim)))
    best, span = values.max(), values.max() - np.median(values)
    random = function(rng.uniform(size=(50, num_trials, dim)))
    space = jlibo.SearchSpace({f"x{place:02}": jlibo.Float(0, 1) for place in range(dim)})
    task, points = jlibo.Tuner(space, seed=seed).task("first", budget=num_trials), []
    for trial in task:
        points.append([trial.params[name] for name in space])
        task.tell(trial, float(function(np.asarray(points[-1]))))
    ours = np.maximum.accumulate(function(np.asarray(points)))
    theirs = np.maximum.accumulate(random, axis=1).mean(0)
    return (best - ours) / span, (best - theirs) / span, np.asarray(points)


def main():
    options = harness.arguments(__doc__).parse_args()
    num_trials, num_seeds = (6, 2) if options.quick else (50, 10)
    marks = [mark for mark in MARKS if mark <= num_trials]
    rows, behind, records = [], [], {}
    for dim in (2,) if options.quick else (2, 8, 16):
        for kind in KINDS:
            runs = [play(kind, dim, seed, num_trials) for seed in range(num_seeds)]
            ours, theirs = (np.array([run[part] for run in runs]) for part in (0, 1))
            points = np.concatenate([run[2] for run in runs])
            gaps = (ours - theirs)[:, [mark - 1 for mark in marks]]
            errors = gaps.std(0, ddof=1) / np.sqrt(num_seeds)
            behind += (gaps.mean(0) > ALLOWED * errors).tolist()
            records[f"{kind} {dim}"] = dict(
                tuner=ours.mean(0).tolist(), random=theirs.mean(0).tolist(), behind=gaps.mean(0).tolist()
            )
            outer = float(((points < 0.1) | (points > 0.9)).mean())
            for name, regret in (("tuner", ours), ("random", theirs)):
                shown = [f"{1000 * regret.mean(0)[mark - 1]:.0f}" for mark in marks]
                share = f"{outer:.2f}" if name == "tuner" else "0.20"
                rows.append([f"{dim}", kind, name, *shown, share])
            print(f"done: {kind}, {dim} parameters", flush=True)
    title = f"Regret of the tuner without a past, thousandths, {num_seeds} seeds"
    result = dict(
        benchmark="first_day",
        machine=harness.describe_machine(),
        sizes=dict(seeds=num_seeds, trials=num_trials),
        records=records,
        tables=[
            dict(title=title, header=["parameters", "function", "", *map(str, marks), "outer"], rows=rows)
        ],
        aims=[
            harness.aim(
                f"share of marks at which the tuner is behind by more than {ALLOWED:g} standard errors",
                0.05,
                float(np.mean(behind)),
                at_most=True,
            )
        ],
        notes='"outer": share of the coordinates in the outer tenths of the box; a uniform draw has 0.20.',
        quick=options.quick,
    )
    harness.report(result, options.json)


if __name__ == "__main__":
    main()
