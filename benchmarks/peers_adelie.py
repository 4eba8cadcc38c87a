"""The adelie process of the group-lasso benchmark, in a separate interpreter (adelie needs numpy < 2).

    python benchmarks/peers_adelie.py PROBLEMS.npz

PROBLEMS.npz holds `design_i`, `targets_i`, `lam_i` and the relative gap `goal`. Requests are JSON lines on
standard input and responses are JSON lines on standard output, so that runs can be interleaved with others:

    {"do": "choose", "problem": i}                             -> representation, tol, relative gap, seconds
    {"do": "tune", "problem": i, "like": j}                    -> problem i gets j's representation, own tol
    {"do": "run", "problems": [i, ...]}                        -> seconds for all of them, one after the other

adelie minimises 1/(2N) ||y - X b||^2 + lmda * sum penalty_g ||b_g||: lmda = lam / 2, penalty = 1 (its default
is the root of the group's size). `early_exit` would stop the path at 90 % of deviance explained.
"""

import json
import sys
import time
from pathlib import Path

import adelie
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests import reference
from tests.solver import peers

LADDER = 10.0 ** -np.arange(2, 16.5, 0.5)
LARGEST_DENSE = 2**30  # bytes


class Problem:
    """One problem, its matrices by representation, and the settings chosen for it."""

    def __init__(self, design, targets, lam):
        self.design, self.targets, self.lam = design, targets, float(lam)
        self.lambda_max = reference.group_lasso_lambda_max(design, targets)
        self.blocks, self.matrices, self.settings = {}, {}, None

    def representations(self):
        """Storage, threads and length of the path of lambdas down to the given one."""
        num_tasks, num_rows, num_features = self.design.shape
        dense_bytes = 8 * num_tasks**2 * num_rows * num_features
        storages = ["csc", "dense"] if dense_bytes <= LARGEST_DENSE else ["csc"]
        return [
            (storage, threads, path) for storage in storages for threads in (1, 2) for path in (1, 3, 5, 10)
        ]

    def prepare(self, representation):
        """Build the matrix in adelie's class, which is not timed."""
        storage, threads, _ = representation
        if (storage, threads) not in self.matrices:
            dense = storage == "dense"
            if storage not in self.blocks:
                self.blocks[storage] = peers.block_problem(self.design, self.targets, dense=dense)
            make = adelie.matrix.dense if dense else adelie.matrix.sparse
            self.matrices[storage, threads] = make(self.blocks[storage].matrix, n_threads=threads)

    def solve(self, representation, tol):
        """Time one call, and return (seconds, state)."""
        storage, threads, path = representation
        block, matrix = self.blocks[storage], self.matrices[storage, threads]
        lambdas = np.geomspace(self.lambda_max / 2, self.lam / 2, path + 1)[1:]
        starts = block.group_starts[:-1].astype(int)
        start = time.perf_counter()
        state = adelie.grpnet(
            matrix,
            adelie.glm.gaussian(block.targets),
            groups=starts,
            penalty=np.ones(len(starts)),
            lmda_path=lambdas,
            tol=tol,
            early_exit=False,
            intercept=False,
            progress_bar=False,
            n_threads=threads,
        )
        return time.perf_counter() - start, state

    def relative_gap(self, representation, state):
        """Return the gap by the reference's formula, relative to (1/N) ||y||^2."""
        coef = self.blocks[representation[0]].coef(state.betas[-1].toarray().ravel())
        gap = reference.group_lasso_gap(self.design, self.targets, self.lam, None, None, coef)
        return float(gap / np.mean(self.targets**2))

    def loosest(self, representation, goal, start=LADDER[0]):
        """Return the loosest tolerance of the list that reaches the goal: (tol, gap), or None."""
        self.prepare(representation)
        for tol in LADDER:
            if tol > 1.01 * start:
                continue
            gap = self.relative_gap(representation, self.solve(representation, tol)[1])
            if gap <= goal:
                return float(tol), gap
        return None


def choose(problem, goal):
    """Try every representation, and keep the fastest that reaches the goal."""
    best = None
    for representation in problem.representations():
        found = problem.loosest(representation, goal)
        if found is None:
            continue
        tol, gap = found
        seconds = float(np.median([problem.solve(representation, tol)[0] for _ in range(5)]))
        if best is None or seconds < best["seconds"]:
            best = dict(representation=representation, tol=tol, gap=gap, seconds=seconds)
    problem.settings = best
    return best


def tune(problem, like, goal):
    """Use another problem's representation, with the loosest tolerance for this problem."""
    representation = like.settings["representation"]
    found = problem.loosest(representation, goal, start=100 * like.settings["tol"])
    problem.settings = found and dict(representation=representation, tol=found[0], gap=found[1])
    return problem.settings


def main():
    stored = np.load(sys.argv[1])
    goal = float(stored["goal"])
    count = sum(name.startswith("lam_") for name in stored.files)
    problems = [
        Problem(stored[f"design_{i}"], stored[f"targets_{i}"], stored[f"lam_{i}"]) for i in range(count)
    ]
    print(json.dumps(dict(adelie=adelie.__version__, numpy=np.__version__)), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "choose":
            answer = choose(problems[request["problem"]], goal)
        elif request["do"] == "tune":
            answer = tune(problems[request["problem"]], problems[request["like"]], goal)
        else:
            asked = [problems[index] for index in request["problems"]]
            answer = sum(p.solve(p.settings["representation"], p.settings["tol"])[0] for p in asked)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
