"""Time and steps of the group-lasso solver on random ill-conditioned problems.

    python benchmarks/ill_conditioned.py [--quick] [--json FILE]

Features are cosines, Legendre polynomials at one end of the interval, equicorrelated columns, or columns of
scales from 0.1 to 10. The penalty is between lambda_max/2 and lambda_max/1000. All problems of a shape are
solved to a relative duality gap of 1e-6 as one batch.
"""

import harness
import numpy as np

SHAPES = [
    (1, 4, 6),
    (1, 10, 50),
    (1, 30, 20),
    (1, 12, 100),
    (5, 8, 20),
    (20, 10, 50),
    (20, 50, 40),
    (8, 30, 100),
]
NUM_PROBLEMS = 150
STEP_LIMIT = 10_000

NOTES = """\
The form of Newton's steps and their damping (`jlibo.solver.newton`) were chosen on these problems and on
those of the experiments. The problems at the step limit have a support larger than the set of Newton's
method. At a2dd1cc, where only problems of one task had Newton steps, 15 are at the limit: copy this
script there to see."""


def draw_problems(shape, number):
    """Return designs, targets and penalties of random problems."""
    rng = np.random.default_rng(0)
    num_tasks, num_rows, num_features = shape
    designs, targets, lams = [], [], []
    for _ in range(number):
        kind = rng.integers(4)
        points = rng.uniform(size=(num_tasks, num_rows, 1))
        if kind == 0:
            design = np.cos(np.pi * np.arange(1, num_features + 1) * points)
        elif kind == 1:
            legendre = np.polynomial.legendre.legvander
            design = np.stack([legendre(1 - 0.3 * task[:, 0], num_features)[:, 1:] for task in points])
        elif kind == 2:
            design = rng.standard_normal(shape) + 3 * rng.standard_normal((num_tasks, num_rows, 1))
        else:
            design = rng.standard_normal(shape) * 10.0 ** rng.uniform(-1, 1, num_features)
        coef = np.zeros((num_tasks, num_features))
        support = rng.permutation(num_features)[:5]
        coef[:, support] = rng.uniform(0.5, 2, (num_tasks, len(support)))
        target = np.einsum("snf,sf->sn", design, coef) + 0.1 * rng.standard_normal((num_tasks, num_rows))
        slopes = np.einsum("snf,sn->sf", design, target)
        largest = 2 / target.size * np.sqrt((slopes**2).sum(0)).max()
        designs.append(design)
        targets.append(target)
        lams.append(largest * 10 ** rng.uniform(-3, -0.3))
    return np.stack(designs), np.stack(targets), np.array(lams)


def bench(shape, dtype, number, repeats):
    """Return the record of one shape and precision."""
    import jax

    from jlibo import Status, group_lasso

    with jax.enable_x64(dtype == np.float64):
        arrays = jax.device_put(tuple(field.astype(dtype) for field in draw_problems(shape, number)))
        solve = jax.jit(jax.vmap(lambda *data: group_lasso(*data, tol=1e-6, max_steps=STEP_LIMIT)))
        solution = jax.block_until_ready(solve(*arrays))
        run = harness.timed(lambda: jax.block_until_ready(solve(*arrays)))
        seconds = harness.interleaved({"jlibo": run}, repeats)["jlibo"].median
    steps = np.asarray(solution.num_steps)
    limit = int((np.asarray(solution.status) == Status.STEP_LIMIT).sum())
    return dict(
        shape=shape,
        dtype=np.dtype(dtype).name,
        milliseconds=1e3 * seconds / number,
        mean_steps=float(steps.mean()),
        steps_90=float(np.quantile(steps, 0.9)),
        most_steps=int(steps.max()),
        at_limit=limit,
        problems=number,
    )


def main():
    options = harness.arguments(__doc__).parse_args()
    shapes, number, repeats = (SHAPES[:1], 8, 1) if options.quick else (SHAPES, NUM_PROBLEMS, 3)
    records = [bench(shape, dtype, number, repeats) for shape in shapes for dtype in (np.float32, np.float64)]
    header = [
        "(tasks, rows, features)",
        "precision",
        "a problem, ms",
        "steps, mean",
        "90 %",
        "most",
        "at the limit",
    ]
    rows = [
        [
            str(record["shape"]),
            record["dtype"],
            harness.number(record["milliseconds"]),
            f"{record['mean_steps']:.0f}",
            f"{record['steps_90']:.0f}",
            str(record["most_steps"]),
            f"{record['at_limit']} of {record['problems']}",
        ]
        for record in records
    ]
    result = dict(
        benchmark="ill_conditioned",
        quick=options.quick,
        machine=harness.describe_machine(),
        records=records,
        tables=[dict(title="Random ill-conditioned group lassos", header=header, rows=rows)],
        notes=NOTES,
    )
    harness.report(result, options.json)


if __name__ == "__main__":
    main()
