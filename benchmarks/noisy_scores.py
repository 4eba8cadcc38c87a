"""The recommended trial beside the best one, when scores are noisy.

    python benchmarks/noisy_scores.py [--quick] [--json FILE]

A tuner without a past plays the synthetic functions of `first_day`, whose scores have Gaussian noise. The
noise is given in standard deviations of the function over random points, and so are all results:

| column      | what it is                                                                               |
|-------------|------------------------------------------------------------------------------------------|
| best        | how far the function's value at `task.best` is below the best of 4,000 random points     |
| recommended | the same at `task.recommended`                                                           |
| score bias  | the score of `task.best` minus the function's value there: the luck in the best score    |
| bias        | `recommended.expected_score` minus the function's value there                            |
| covered     | share of runs in which that value is within two `recommended.std` of the expected score  |
"""

import os

os.environ.setdefault("NPROC", "4")

import harness
import numpy as np
from first_day import draw_function

import jlibo

DIM = 4
KINDS = ("quadratic", "few", "bump")
NOISES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
LEAST_COVERED = 0.9
"""Aim for the share of covered values, at every noise. Two standard deviations of a normal cover 0.95."""


def play(kind, noise, seed, num_trials):
    """Return the numbers of one run, in the order of the table's columns."""
    rng = np.random.default_rng((seed, DIM, KINDS.index(kind)))
    function = draw_function(kind, DIM, rng)
    values = function(rng.uniform(size=(4000, DIM)))
    best, scale = values.max(), values.std()
    space = jlibo.SearchSpace({f"x{place}": jlibo.Float(0, 1) for place in range(DIM)})

    def truth(params):
        return float(function(np.array([params[name] for name in space])))

    task = jlibo.Tuner(space, seed=seed).task("noisy", budget=num_trials)
    for trial in task:
        task.tell(trial, truth(trial.params) + noise * scale * rng.normal())
    lucky, chosen = task.best, task.recommended
    at_best, at_chosen = truth(lucky.params), truth(chosen.params)
    error = chosen.expected_score - at_chosen
    numbers = best - at_best, best - at_chosen, lucky.score - at_best, error
    return [*(number / scale for number in numbers), abs(error) <= 2 * chosen.std]


def main():
    options = harness.arguments(__doc__).parse_args()
    num_trials, num_seeds = (6, 2) if options.quick else (30, 20)
    noises = NOISES[:2] if options.quick else NOISES
    rows, records, covered = [], {}, []
    for noise in noises:
        runs = np.array([play(kind, noise, seed, num_trials) for kind in KINDS for seed in range(num_seeds)])
        mean, error = runs.mean(0), runs.std(0, ddof=1) / np.sqrt(len(runs))
        gain = runs[:, 0] - runs[:, 1]
        covered.append(mean[-1])
        records[str(noise)] = dict(mean=mean.tolist(), error=error.tolist(), gain=float(gain.mean()))
        shown = [f"{m:.3f} ± {e:.3f}" for m, e in zip(mean[:-1], error[:-1], strict=True)]
        rows.append([f"{noise:g}", *shown, f"{mean[-1]:.2f}"])
        print(f"done: noise {noise:g}", flush=True)
    title = f"{DIM} parameters, {num_trials} trials, {len(KINDS)} functions x {num_seeds} seeds"
    result = dict(
        benchmark="noisy_scores",
        machine=harness.describe_machine(),
        sizes=dict(parameters=DIM, trials=num_trials, seeds=num_seeds, functions=list(KINDS)),
        records=records,
        tables=[
            dict(
                title=title,
                header=["noise", "best", "recommended", "score bias", "bias", "covered"],
                rows=rows,
            )
        ],
        aims=[
            harness.aim("least share of covered values over the noises", LEAST_COVERED, float(min(covered)))
        ],
        notes="All numbers but the last column are in standard deviations of the function.",
        quick=options.quick,
    )
    harness.report(result, options.json)


if __name__ == "__main__":
    main()
