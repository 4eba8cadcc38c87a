"""The paper's lifelong experiment in NumPy, in a straightforward and in an optimised version.

| here           | what it is                                                                               |
|----------------|------------------------------------------------------------------------------------------|
| `run_plain`    | one seed: a kernel matrix per task, a Cholesky factor of all observations at every step  |
| `run_careful`  | all seeds and agents at once: jlibo's rank-one updates, candidates vectorised            |
| `GroupLasso`   | the solver of both: the fastest of three that reaches the gap, chosen before the timing  |

This module imports neither jlibo nor jax. Random draws (values, noise, exploration) are inputs and are not
timed. Lanes are all pairs of agent and seed.
"""

import math
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.linalg import cholesky, solve_triangular

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests import reference
from tests.lifelong.reference_lifelong import constant_rates, decreasing_rates, num_forced, vote
from tests.solver import peers

AGENTS = ("oracle", "full", "libo", "flibo")


class World(NamedTuple):
    """The tasks, noise and exploration draws of some seeds, shared by all agents."""

    features: np.ndarray
    """[candidates, features], each feature a base kernel."""
    supports: list[set[int]]
    values: np.ndarray
    """[seeds, tasks, candidates]"""
    noise: np.ndarray
    """[seeds, tasks, steps]"""
    exploration: np.ndarray
    """[seeds, tasks, steps]"""


class Numbers(NamedTuple):
    """The settings of the experiment."""

    nu: float
    noise_std: float
    lam: float
    lam_federated: float
    omega: float
    alpha: float
    tol: float


class Run(NamedTuple):
    """Actions [agents, seeds, tasks, steps] and selections [agents, seeds, tasks, kernels]."""

    actions: np.ndarray
    support: np.ndarray


def schedules(num_tasks, horizon):
    """Return the number of forced exploration steps of each agent in each task."""
    nothing = [0] * num_tasks
    return dict(
        oracle=nothing,
        full=nothing,
        libo=num_forced(decreasing_rates(num_tasks, horizon)),
        flibo=num_forced(constant_rates(num_tasks, horizon)),
    )


# ------------------------------------------------------------------------------------------------ the solver


def fista(rows, targets, lam, tol, start):
    """Accelerated proximal gradient on the normal equations, warm-started, up to a duality gap."""
    lengths = [len(r) for r in rows]
    design = np.zeros((len(rows), max(lengths), rows[0].shape[1]))
    padded = np.zeros(design.shape[:2])
    for task, (r, y) in enumerate(zip(rows, targets, strict=True)):
        design[task, : len(r)], padded[task, : len(r)] = r, y
    total = sum(lengths)
    curvature = 2 / total * np.matmul(design.transpose(0, 2, 1), design)
    pull = 2 / total * np.matmul(design.transpose(0, 2, 1), padded[..., None])[..., 0]
    step = 1 / np.linalg.norm(curvature, 2, axis=(1, 2)).max()
    goal = tol * (padded**2).sum() / total
    coef = np.zeros_like(pull) if start is None else start.copy()
    ahead, momentum = coef, 1.0
    for count in range(100_000):
        if count % 10 == 0:
            gradient = pull - np.matmul(curvature, coef[..., None])[..., 0]
            residual = padded - np.matmul(design, coef[..., None])[..., 0]
            if _gap(coef, residual, gradient, padded, lam, total) <= goal:
                return coef
        moved = ahead + step * (pull - np.matmul(curvature, ahead[..., None])[..., 0])
        norms = np.sqrt((moved**2).sum(0))
        new = moved * np.maximum(1 - step * lam / np.maximum(norms, 1e-300), 0)
        if ((ahead - new) * (new - coef)).sum() > 0:
            momentum = 1.0
        next_momentum = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = new + (momentum - 1) / next_momentum * (new - coef)
        coef, momentum = new, next_momentum
    raise RuntimeError("the proximal gradient did not reach the gap")


def _gap(coef, residual, gradient, targets, lam, total):
    """Return the duality gap of eq. (1) as a sum of non-negative terms, as in jlibo.solver.proximal."""
    energy = (residual**2).sum()
    steepest = np.sqrt((gradient**2).sum(0)).max()
    scale = min(max((residual * targets).sum() / max(energy, 1e-300), 0), lam / max(steepest, 1e-300))
    penalty = lam * np.sqrt((coef**2).sum(0)) - scale * (coef * gradient).sum(0)
    return energy / total * (1 - scale) ** 2 + np.maximum(penalty, 0).sum()


def celer(rows, targets, lam, tol, start):
    """celer's group lasso on the block-diagonal matrix, which is rebuilt for each solve as it grows."""
    longest = max(len(r) for r in rows)
    design = np.zeros((len(rows), longest, rows[0].shape[1]))
    padded, mask = np.zeros(design.shape[:2]), np.zeros(design.shape[:2], bool)
    for task, (r, y) in enumerate(zip(rows, targets, strict=True)):
        design[task, : len(r)], padded[task, : len(r)], mask[task, : len(r)] = r, y, True
    block = peers.block_problem(design, padded, mask=mask, dense=True)
    flat, _ = peers.celer_fit(block, lam, tol)
    return block.coef(flat)


def sklearn_lasso(rows, targets, lam, tol, start):
    """scikit-learn's lasso, for one task, where each group is a single coefficient."""
    from sklearn.linear_model import Lasso

    model = Lasso(alpha=lam / 2, fit_intercept=False, tol=tol, max_iter=100_000, warm_start=False)
    return model.fit(np.asfortranarray(rows[0]), targets[0]).coef_[None]


class GroupLasso:
    """The fastest solver for a size, chosen by timing all that reach the gap."""

    ways = dict(proximal=fista, celer=celer, sklearn=sklearn_lasso)  # noqa: RUF012

    def __init__(self, tol):
        self.tol = tol
        self.chosen = {}

    def choose(self, kind, rows, targets, lam):
        """Try the solvers on a typical problem of this kind."""
        best = math.inf
        for name, solve in self.ways.items():
            if name == "sklearn" and len(rows) > 1:
                continue
            seconds = []
            for _ in range(3):
                begin = time.perf_counter()
                coef = solve(rows, targets, lam, self.tol, None)
                seconds.append(time.perf_counter() - begin)
            if relative_gap(rows, targets, lam, coef) <= 2 * self.tol and min(seconds) < best:
                best, self.chosen[kind] = min(seconds), name

    def __call__(self, kind, rows, targets, lam, start=None):
        return self.ways[self.chosen.get(kind, "proximal")](rows, targets, lam, self.tol, start)


def relative_gap(rows, targets, lam, coef):
    """Return the duality gap by the reference's formula, relative to (1/N) ||y||^2."""
    longest = max(len(r) for r in rows)
    design = np.zeros((len(rows), longest, rows[0].shape[1]))
    padded, mask = np.zeros(design.shape[:2]), np.zeros(design.shape[:2], bool)
    for task, (r, y) in enumerate(zip(rows, targets, strict=True)):
        design[task, : len(r)], padded[task, : len(r)], mask[task, : len(r)] = r, y, True
    gap = reference.group_lasso_gap(design, padded, lam, None, mask, coef)
    return float(gap / np.mean(padded[mask] ** 2))


# ----------------------------------------------------------------------------------------- the meta-learners


class Learner:
    """The state of the meta-learner of one agent and seed."""

    def __init__(self, agent, truth, num_kernels, numbers, solver):
        self.agent, self.numbers, self.solver = agent, numbers, solver
        self.chosen = (
            set(truth) if agent == "oracle" else set(range(num_kernels)) if agent == "full" else set()
        )
        self.rows, self.targets, self.messages, self.coef = [], [], [], None

    def learn(self, rows, targets):
        numbers = self.numbers
        if self.agent == "libo":
            self.rows.append(rows)
            self.targets.append(targets)
            if self.coef is not None:
                self.coef = np.concatenate([self.coef, np.zeros((1, rows.shape[1]))])
            self.coef = self.solver("libo", self.rows, self.targets, numbers.lam, self.coef)
            norms = np.sqrt((self.coef**2).sum(0))
            self.chosen = set(np.flatnonzero(norms > numbers.omega * math.sqrt(len(self.rows))))
        elif self.agent == "flibo":
            coef = self.solver("flibo", [rows], [targets], numbers.lam_federated)
            self.messages.append(set(np.flatnonzero(np.abs(coef[0]) > numbers.omega)))
            self.chosen = vote(self.messages, numbers.alpha)

    def variances(self, num_kernels):
        """Return the prior variance of each weight: the average of the selected kernels, or of all."""
        chosen = sorted(self.chosen) or list(range(num_kernels))
        variances = np.zeros(num_kernels)
        variances[chosen] = 1 / len(chosen)
        return variances


# --------------------------------------------------------------------------------------------------- plain


def play_plain(kernel, values, noise, exploration, num_explore, numbers):
    """Run GP-UCB on one task, with a Cholesky factor of all observations at every step."""
    actions, rewards = [], []
    diagonal = kernel.diagonal()
    for step in range(len(noise)):
        if step < num_explore:
            action = int(exploration[step])
        elif not actions:
            action = int(np.argmax(numbers.nu * np.sqrt(diagonal)))
        else:
            gram = kernel[np.ix_(actions, actions)] + numbers.noise_std**2 * np.eye(len(actions))
            factor = cholesky(gram, lower=True, check_finite=False)
            cross = solve_triangular(factor, kernel[actions], lower=True, check_finite=False)
            white = solve_triangular(factor, np.array(rewards), lower=True, check_finite=False)
            variance = diagonal - (cross**2).sum(0)
            action = int(np.argmax(white @ cross + numbers.nu * np.sqrt(np.maximum(variance, 0))))
        actions.append(action)
        rewards.append(values[action] + noise[step])
    return np.array(actions), np.array(rewards)


def run_plain(world, seed, numbers, solver):
    """Run all agents on one seed."""
    num_tasks, horizon = world.noise.shape[1:]
    num_kernels = world.features.shape[1]
    forced = schedules(num_tasks, horizon)
    actions = np.zeros((len(AGENTS), num_tasks, horizon), int)
    support = np.zeros((len(AGENTS), num_tasks, num_kernels), bool)
    for place, agent in enumerate(AGENTS):
        learner = Learner(agent, world.supports[seed], num_kernels, numbers, solver)
        for task in range(num_tasks):
            num_explore = forced[agent][task]
            kernel = (world.features * learner.variances(num_kernels)) @ world.features.T
            played, rewards = play_plain(
                kernel,
                world.values[seed, task],
                world.noise[seed, task],
                world.exploration[seed, task],
                num_explore,
                numbers,
            )
            learner.learn(world.features[played[:num_explore]], rewards[:num_explore])
            actions[place, task] = played
            support[place, task, list(learner.chosen)] = True
    return Run(actions[:, None], support[:, None])


# -------------------------------------------------------------------------------------------------- careful


def play_careful(features, variances, values, noise, exploration, num_explore, numbers):
    """Run one task of all lanes, by rank-one updates of a factor of the weights' covariance.

    `variances[lanes, features]`, `values[lanes, candidates]`, `noise` and `exploration[lanes, steps]`,
    `num_explore[lanes]`.
    """
    num_lanes, num_features = variances.shape
    lanes = np.arange(num_lanes)
    dtype = features.dtype
    transposed = np.ascontiguousarray(features.T)
    factor = np.sqrt(variances)[:, :, None] * np.eye(num_features, dtype=dtype)
    mean = np.zeros((num_lanes, len(features)), dtype)
    variance = variances @ (transposed**2)
    weights = np.zeros((num_lanes, num_features), dtype)
    scores, cross = np.empty_like(mean), np.empty_like(mean)
    actions = np.zeros((num_lanes, noise.shape[1]), int)
    rewards = np.zeros((num_lanes, noise.shape[1]), dtype)
    noise_std = dtype.type(numbers.noise_std)
    for step in range(noise.shape[1]):
        np.sqrt(variance, out=scores)
        scores *= dtype.type(numbers.nu)
        scores += mean
        action = np.where(step < num_explore, exploration[:, step], scores.argmax(1))
        reward = values[lanes, action] + noise[:, step]
        feature = features[action]
        image = np.matmul(feature[:, None, :], factor)[:, 0]
        gain = 1 / ((image**2).sum(1) + noise_std**2)
        direction = np.matmul(factor, image[:, :, None])[:, :, 0]
        surprise = reward - (weights * feature).sum(1)
        shrink = gain / (1 + noise_std * np.sqrt(gain))
        weights += (gain * surprise)[:, None] * direction
        factor -= (direction * shrink[:, None])[:, :, None] * image[:, None, :]
        np.matmul(direction, transposed, out=cross)
        mean += (gain * surprise)[:, None] * cross
        cross *= np.sqrt(gain)[:, None]
        np.square(cross, out=cross)
        variance -= cross
        np.maximum(variance, 0, out=variance)
        actions[:, step], rewards[:, step] = action, reward
    return actions, rewards


def run_careful(world, numbers, solver, dtype=np.float32):
    """Run all seeds and agents."""
    num_seeds, num_tasks, horizon = world.noise.shape
    num_kernels = world.features.shape[1]
    forced = schedules(num_tasks, horizon)
    features = world.features.astype(dtype)
    pairs = [(agent, seed) for agent in AGENTS for seed in range(num_seeds)]
    seeds = np.array([seed for _, seed in pairs])
    learners = [Learner(agent, world.supports[seed], num_kernels, numbers, solver) for agent, seed in pairs]
    actions = np.zeros((len(pairs), num_tasks, horizon), int)
    support = np.zeros((len(pairs), num_tasks, num_kernels), bool)
    for task in range(num_tasks):
        num_explore = np.array([forced[agent][task] for agent, _ in pairs])
        played, rewards = play_careful(
            features,
            np.stack([learner.variances(num_kernels) for learner in learners]).astype(dtype),
            world.values[seeds, task].astype(dtype),
            world.noise[seeds, task].astype(dtype),
            world.exploration[seeds, task],
            num_explore,
            numbers,
        )
        actions[:, task] = played
        for lane, learner in enumerate(learners):
            count = num_explore[lane]
            learner.learn(world.features[played[lane, :count]], rewards[lane, :count].astype(np.float64))
            support[lane, task, list(learner.chosen)] = True
    shape = (len(AGENTS), num_seeds)
    return Run(actions.reshape(*shape, *actions.shape[1:]), support.reshape(*shape, *support.shape[1:]))
