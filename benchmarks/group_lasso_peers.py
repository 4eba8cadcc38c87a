"""Problems and peers of the group-lasso benchmark: celer and skglm in this process, adelie in its own.

Only the `run` of a `Choice` is timed. Problems are drawn, matrices built, and each peer's representation and
tolerance chosen beforehand.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import harness
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests import reference  # noqa: E402
from tests.solver import peers  # noqa: E402

GOAL = 1e-6
CORE = "celer core"
LADDER = 10.0 ** -np.arange(2, 12.5, 0.5)
LARGEST_DENSE = 2**30  # bytes


class Problem(NamedTuple):
    """One multi-task problem, as arrays."""

    design: np.ndarray
    targets: np.ndarray
    lam: float
    divisor: int

    def relative_gap(self, coef):
        """Return the duality gap by the reference's formula, relative to (1/N) ||y||^2."""
        gap = reference.group_lasso_gap(self.design, self.targets, self.lam, None, None, np.asarray(coef))
        return float(gap / np.mean(self.targets**2))


class Choice(NamedTuple):
    """The fastest configuration of a peer on a problem, and a contender that returns its seconds."""

    representation: str
    tol: float
    gap: float
    run: object


def draw_problem(rng, num_tasks, num_rows, num_features, num_active, divisor):
    """Return data like the paper's: cosine features of uniform points, a shared support, noise 0.1.

    Coefficients on the support are uniform in the ball of radius 10, rejected until each is at least 0.5 in
    magnitude.
    """
    points = rng.uniform(size=(num_tasks, num_rows, 1))
    design = np.cos(np.pi * np.arange(1, num_features + 1) * points)
    support = rng.permutation(num_features)[:num_active]
    coef = np.zeros((num_tasks, num_features))
    for task in range(num_tasks):
        while not (np.abs(coef[task, support]) >= 0.5).all():
            direction = rng.standard_normal(num_active)
            radius = 10 * rng.uniform() ** (1 / num_active)
            coef[task, support] = radius * direction / np.linalg.norm(direction)
    noise = 0.1 * rng.standard_normal((num_tasks, num_rows))
    targets = np.einsum("mnd,md->mn", design, coef) + noise
    lam = reference.group_lasso_lambda_max(design, targets) / divisor
    return Problem(design, targets, float(lam), divisor)


# --------------------------------------------------------------------------------- peers in this interpreter


def celer_core(block, lam, tol, norms):
    """Call celer's compiled group solver with the norms of the groups given; return (flat coef, own gap).

    celer's public function computes those norms by Python loops for sparse matrices, and otherwise by one
    dense singular value decomposition per group, which is most of its time here.
    """
    from celer.group_fast import celer_grp
    from celer.homotopy import LASSO

    num_rows, num_columns = block.matrix.shape
    alpha = lam / 2
    correlation = block.matrix.T @ block.targets
    dual_norm = np.sqrt(np.add.reduceat(correlation**2, block.group_starts[:-1]).max())
    empty = np.empty((1, 1), order="F")
    _, _, gaps = celer_grp(
        True,
        LASSO,
        empty,
        np.arange(num_columns, dtype=np.int32),
        block.group_starts,
        block.matrix.data,
        block.matrix.indices,
        block.matrix.indptr,
        np.zeros(num_columns),
        block.targets,
        alpha,
        coef := np.zeros(num_columns),
        block.targets.copy(),
        block.targets / max(dual_norm / alpha, num_rows),
        norms,
        tol,
        np.ones(len(norms)),
        1_000,
        50_000,
        p0=10,
        prune=True,
        verbose=0,
    )[:3]
    return coef, 2 * gaps[-1]


def representations(name, problem):
    """Return for each representation a function of tol that returns (flat coef, own gap or None)."""
    num_tasks, num_rows, num_features = problem.design.shape
    ways = {}
    csc = peers.block_problem(problem.design, problem.targets)
    if name == "skglm":
        ways["csc"] = csc, lambda tol: (peers.skglm_fit(csc, problem.lam, tol), None)
    if name == CORE:
        # With one feature per group, a group's columns are orthogonal; its norm is that of the longest.
        squares = np.asarray(csc.matrix.multiply(csc.matrix).sum(axis=0)).ravel()
        norms = np.sqrt(np.maximum.reduceat(squares, csc.group_starts[:-1]))
        ways["csc, norms given"] = csc, lambda tol: celer_core(csc, problem.lam, tol, norms)
    if name != CORE and 8 * num_tasks**2 * num_rows * num_features <= LARGEST_DENSE:
        dense = peers.block_problem(problem.design, problem.targets, dense=True)
        if name == "skglm":
            ways["dense"] = dense, lambda tol: (peers.skglm_fit(dense, problem.lam, tol), None)
        else:
            ways["dense"] = dense, lambda tol: peers.celer_fit(dense, problem.lam, tol)
    return ways


def certified_gap(problem, coef, own_gap=None):
    """Return the smaller of the reference's relative gap and the solver's, whose dual point may be better."""
    gap = problem.relative_gap(coef)
    return gap if own_gap is None else min(gap, float(own_gap) / float(np.mean(problem.targets**2)))


def loosest(problem, block, solve, start=LADDER[0]):
    """Return the loosest tolerance that reaches the gap, by our formula or the peer's: (tol, gap) or None."""
    for tol in LADDER:
        if tol > 1.01 * start:
            continue
        flat, own_gap = solve(tol)
        gap = certified_gap(problem, block.coef(flat), own_gap)
        if gap <= GOAL:
            return float(tol), gap
    return None


def choose(name, problem):
    """Try a peer's representations outside of the timing, and keep the fastest that reaches the gap."""
    best, best_seconds = None, np.inf
    for representation, (block, solve) in representations(name, problem).items():
        found = loosest(problem, block, solve)
        if found is None:
            continue
        tol, gap = found
        run = harness.timed(lambda solve=solve, tol=tol: solve(tol))
        seconds = min(run() for _ in range(3))
        if seconds < best_seconds:
            best, best_seconds = Choice(representation, tol, gap, run), seconds
    return best


def tune(name, problem, like):
    """Use the representation chosen for a similar problem, with the loosest tolerance for this one."""
    block, solve = representations(name, problem)[like.representation]
    found = loosest(problem, block, solve, start=100 * like.tol)
    return found and Choice(like.representation, *found, harness.timed(lambda: solve(found[0])))


# ---------------------------------------------------------------------------------- adelie in its own process


class Adelie:
    """A process that solves with adelie, one request at a time; see peers_adelie.py."""

    def __init__(self, python, problems):
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "problems.npz"
        arrays = {}
        for index, problem in enumerate(problems):
            arrays[f"design_{index}"] = problem.design
            arrays[f"targets_{index}"] = problem.targets
            arrays[f"lam_{index}"] = problem.lam
        np.savez(path, goal=GOAL, **arrays)
        script = Path(__file__).with_name("peers_adelie.py")
        self.process = subprocess.Popen(
            [python, "-W", "ignore", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.versions = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the adelie process ended early; its error is above")
        return json.loads(line)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def as_choice(self, found, problems):
        if found is None:
            return None
        storage, threads, path = found["representation"]
        words = f"{storage}, {threads} thread{'s' * (threads > 1)}, path of {path}"
        return Choice(words, found["tol"], found["gap"], lambda: self.ask(do="run", problems=problems))

    def choose(self, index):
        return self.as_choice(self.ask(do="choose", problem=index), [index])

    def tune(self, index, like):
        return self.as_choice(self.ask(do="tune", problem=index, like=like), [index])

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.folder.cleanup()


def start_adelie(problems):
    """Return the adelie process; if it is not available, print why and return None."""
    python = os.environ.get("JLIBO_PEERS_PYTHON", str(ROOT / ".venv-peers" / "bin" / "python"))
    if not Path(python).exists():
        print("adelie: no interpreter (run `make peers`, or set JLIBO_PEERS_PYTHON); going on without it")
        return None
    return Adelie(python, problems)
