"""The method `empirical-gp`: a Gaussian process whose mean and covariance are learned from past tasks by EM.

The values of a task at M inducing points Z are a draw of one N(mu, Sigma), in units in which each past task
has mean 0 and standard deviation 1. K is a Matern-5/2 kernel with one length-scale.

1. Length-scale and noise of K maximise the summed marginal likelihood of the past tasks, on a grid.
2. EM, started at N(0, K(Z, Z)). E-step: the posterior of each task's values at Z given its trials. M-step:
   mu is the mean of the posterior means, Sigma the mean of posterior covariance plus outer product of
   deviations, shrunk by `SHRINKAGE` towards K(Z, Z) of the same trace.
3. Away from Z the learned part is interpolated with w(x) = K(Z, Z)^-1 k(Z, x): the prior of a new task has
   the mean w(x) mu and the covariance k(x, x') - w(x) K w(x') + w(x) Sigma w(x').
4. On the new task a base kernel is added, a scaled Matern-5/2 with a length-scale for each coordinate. Its
   scale, length-scales and the noise are fitted to the task's own trials at every third step, by marginal
   likelihood. The scale starts small and grows if the task disagrees with the past.
5. The units of the new task, a location a and a scale b with scores = b (a + f), are those of the largest
   restricted likelihood, in closed form. The geometric mean of the past tasks' scales counts as
   `SCALE_TRIALS` trials in b.

The next configuration has the largest log expected improvement; the first has the largest prior mean. All
functions have fixed shapes: absent trials are masked, and the number of past tasks is padded to a power of
two.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.linalg import cho_solve, solve_triangular

from benchmarks.automl.problem import Problem, encode
from benchmarks.automl.regimes import Trials, random_run
from jlibo.policies.log_expected_improvement import log_gain

MOST_INDUCING = 400
LENGTH_SCALES = (0.1, 0.2, 0.4, 0.8)
"""Grid for the length-scale of K, in units of the square root of the number of parameters."""
NOISES = (1e-3, 1e-2, 1e-1)
"""Grid for the variance of the noise in the past tasks."""
EM_STEPS = 10
SHRINKAGE = 0.05
JITTER = 1e-6
SCALE_TRIALS = 0.1
REFIT_EVERY = 3
FIT_STEPS = 30
FIT_RATE = 0.1
START = dict(scale=np.log(0.05), noise=np.log(0.01))
"""Start and centre of the priors of the logarithms of base scale and noise; their widths are `WIDTHS`."""
WIDTHS = dict(scale=1.5, noise=1.0, lengths=0.7)


class Past(NamedTuple):
    """The trials of past tasks, padded."""

    points: Any  # [tasks, trials, dim]
    targets: Any  # [tasks, trials], standardised
    present: Any  # [tasks, trials]


class Learned(NamedTuple):
    """The result of EM."""

    mean: Any  # [inducing]
    covariance: Any  # [inducing, inducing]
    length: Any
    noise: Any


def matern(left, right, lengths):
    """Return the Matern-5/2 kernel of two sets of points, [left, right]."""
    left, right = left / lengths, right / lengths
    squares = (left**2).sum(-1)[:, None] + (right**2).sum(-1)[None] - 2 * left @ right.T
    root = jnp.sqrt(5 * jnp.maximum(squares, 1e-12))  # away from 0, where the square root has no derivative
    return (1 + root + root**2 / 3) * jnp.exp(-root)


def masked(matrix, present):
    """Return a covariance matrix in which absent rows are independent of all others, with variance 1."""
    return jnp.where(present[:, None] & present[None], matrix, 0) + jnp.diag(jnp.where(present, 0.0, 1.0))


def choose_kernel(past: Past, lengths, noises):
    """Return the length-scale and noise of the grid with the largest summed marginal likelihood."""

    def likelihood(setting):
        def of_task(points, targets, present):
            kernel = matern(points, points, setting[0]) + setting[1] * jnp.eye(len(targets))
            factor = jnp.linalg.cholesky(masked(kernel, present))
            white = solve_triangular(factor, targets, lower=True)
            return -0.5 * white @ white - jnp.log(jnp.diagonal(factor)).sum()

        return jax.vmap(of_task)(*past).sum()

    grid = jnp.stack([part.ravel() for part in jnp.meshgrid(lengths, noises)], axis=1)
    length, noise = grid[jnp.argmax(jax.lax.map(likelihood, grid))]
    return length, noise


def interpolate(points, inducing, factor, length):
    """Return w(points), [points, inducing]; `factor` is the Cholesky factor of K(Z, Z)."""
    return cho_solve((factor, True), matern(inducing, points, length)).T


def em_step(mean, covariance, weights, residual, past: Past, kernel):
    """Return mean and covariance after one step of EM.

    `weights` are w at each task's trials, [task, trial, inducing], and `residual` the covariance of the
    trials given the values at Z, noise included, [task, trial, trial].
    """

    def of_task(weights, residual, targets, present):
        weights = jnp.where(present[:, None], weights, 0)
        cross = weights @ covariance
        factor = jnp.linalg.cholesky(masked(cross @ weights.T + residual, present))
        half = solve_triangular(factor, cross, lower=True)
        white = solve_triangular(factor, jnp.where(present, targets - weights @ mean, 0), lower=True)
        return half.T @ white, half

    moves, halves = jax.vmap(of_task)(weights, residual, past.targets, past.present)
    is_task = past.present.any(1)
    count = is_task.sum()
    move = moves.sum(0) / count
    deviations = jnp.where(is_task[:, None], moves - move, 0)
    halves = halves.reshape(-1, halves.shape[-1])
    new = covariance + (deviations.T @ deviations - halves.T @ halves) / count
    shrunk = (1 - SHRINKAGE) * new + SHRINKAGE * (jnp.trace(new) / jnp.trace(kernel)) * kernel
    return mean + move, shrunk


@jax.jit
def learn(past: Past, inducing, lengths, noises) -> Learned:
    """Return the Gaussian over values at the inducing points, learned from the past tasks."""
    length, noise = choose_kernel(past, lengths, noises)
    kernel = matern(inducing, inducing, length) + JITTER * jnp.eye(len(inducing))
    factor = jnp.linalg.cholesky(kernel)

    def prepare(points):
        weights = interpolate(points, inducing, factor, length)
        own = matern(points, points, length)
        return weights, own - weights @ kernel @ weights.T + noise * jnp.eye(len(points))

    weights, residual = jax.lax.map(prepare, past.points)

    def step(_, state):
        return em_step(*state, weights, residual, past, kernel)

    start = jnp.zeros(len(inducing)), kernel
    mean, covariance = jax.lax.fori_loop(0, EM_STEPS, step, start)
    return Learned(mean, covariance, length, noise)


def prior_at(learned: Learned, inducing, points):
    """Return mean and covariance of the prior of a new task at points."""
    kernel = matern(inducing, inducing, learned.length) + JITTER * jnp.eye(len(inducing))
    weights = interpolate(points, inducing, jnp.linalg.cholesky(kernel), learned.length)
    own = matern(points, points, learned.length)
    return weights @ learned.mean, own + weights @ (learned.covariance - kernel) @ weights.T


class Fit(NamedTuple):
    """The units of a task and the whitened residuals under given hyper-parameters."""

    loss: Any
    location: Any
    scale: Any
    factor: Any
    solved: Any  # V^-1 (scores / scale - location - mean)


def fit_units(covariance, mean, scores, present) -> Fit:
    """Return location and scale of the largest restricted likelihood, and its negative logarithm.

    `scores` are in units of the past tasks' scale; entries where not `present` are ignored.
    """
    factor = jnp.linalg.cholesky(masked(covariance, present))
    ones, scores, mean = (jnp.where(present, part, 0.0) for part in (1.0, scores, mean))
    white = solve_triangular(factor, jnp.stack([ones, scores, mean], axis=1), lower=True)
    level, rest = white[:, :1], white[:, 1:]
    weight = (level**2).sum()
    rest = rest - level * (level.T @ rest) / weight  # project out the location
    (yy, ym), (_, mm) = rest.T @ rest
    count = present.sum() - 1 + SCALE_TRIALS
    total = yy + SCALE_TRIALS
    scale = (-ym + jnp.sqrt(ym**2 + 4 * count * total)) / (2 * count)
    location = (level[:, 0] @ (white[:, 1] / scale - white[:, 2])) / weight
    squares = total / scale**2 - 2 * ym / scale + mm
    half_logdet = jnp.log(jnp.diagonal(factor)).sum()
    loss = count * jnp.log(scale) + 0.5 * squares + half_logdet + 0.5 * jnp.log(weight)
    residual = scores / scale - ones * location - mean
    return Fit(loss, location, scale, factor, cho_solve((factor, True), residual))


def base_kernel(theta, left, right):
    return jnp.exp(theta["scale"]) * matern(left, right, jnp.exp(theta["lengths"]))


def own_covariance(theta, prior, points):
    """Return the covariance of trials at points: prior, base kernel and noise."""
    return prior + base_kernel(theta, points, points) + jnp.exp(theta["noise"]) * jnp.eye(len(points))


def refit(theta, centre, prior, mean, points, scores, present):
    """Return the hyper-parameters after some steps of Adam on the penalised likelihood."""

    def loss(theta):
        fitted = fit_units(own_covariance(theta, prior, points), mean, scores, present).loss
        distance = sum((((theta[key] - centre[key]) / width) ** 2).sum() for key, width in WIDTHS.items())
        return fitted + 0.5 * distance

    optimiser = optax.adam(FIT_RATE)

    def step(_, state):
        theta, inner = state
        update, inner = optimiser.update(jax.grad(loss)(theta), inner)
        return optax.apply_updates(theta, update), inner

    return jax.lax.fori_loop(0, FIT_STEPS, step, (theta, optimiser.init(theta)))[0]


def posterior(theta, prior_mean, prior_covariance, points, rows, scores, present):
    """Return the posterior mean and standard deviation at all points, and the best score so far.

    All three are in the latent units, in which the past tasks are standardised.
    """
    covariance = own_covariance(theta, prior_covariance[rows][:, rows], points[rows])
    fit = fit_units(covariance, prior_mean[rows], scores, present)
    cross = prior_covariance[:, rows] + base_kernel(theta, points, points[rows])
    cross = jnp.where(present, cross, 0)
    half = solve_triangular(fit.factor, cross.T, lower=True)
    variance = jnp.diagonal(prior_covariance) + jnp.exp(theta["scale"]) - (half**2).sum(0)
    best = jnp.where(present, scores, -jnp.inf).max() / fit.scale - fit.location
    return prior_mean + cross @ fit.solved, jnp.sqrt(jnp.maximum(variance, 1e-12)), best


def play_task(learned: Learned, inducing, points, values, available, budget: int):
    """Return the rows that are tried on one task; `values` are in units of the past tasks' scale."""
    prior_mean, prior_covariance = prior_at(learned, inducing, points)
    lengths = jnp.full(points.shape[-1], jnp.log(learned.length))
    centre = {key: jnp.asarray(value) for key, value in START.items()} | {"lengths": lengths}

    def step(carry, number):
        rows, theta, left = carry
        present = jnp.arange(budget) < number
        scores = jnp.where(present, values[rows], 0)

        def fit(theta):
            prior = prior_covariance[rows][:, rows]
            return refit(theta, centre, prior, prior_mean[rows], points[rows], scores, present)

        theta = jax.lax.cond((number % REFIT_EVERY == 0) & (number > 0), fit, lambda theta: theta, theta)
        mean, std, best = posterior(theta, prior_mean, prior_covariance, points, rows, scores, present)
        gain = jnp.where(number > 0, jnp.log(std) + log_gain((mean - best) / std), prior_mean)
        row = jnp.argmax(jnp.where(left, gain, -jnp.inf))
        return (rows.at[number].set(row), theta, left.at[row].set(False)), None

    start = jnp.zeros(budget, int), centre, available
    (rows, _, _), _ = jax.lax.scan(step, start, jnp.arange(budget))
    return rows


_play_task = jax.jit(play_task, static_argnames="budget")


class EmpiricalGP:
    """The method `empirical-gp`; call it with the past, a task and a generator."""

    def __init__(self, problem: Problem, budget: int, seed: int = 0):
        self.problem, self.budget = problem, budget
        with jax.enable_x64(True):
            self.inducing = jnp.asarray(choose_inducing(problem, seed))
        self._last: tuple[tuple[Trials, ...], Learned] | None = None

    def __call__(self, past: tuple[Trials, ...], task: int, rng: np.random.Generator) -> np.ndarray:
        if not past:
            return random_run(self.problem, task, self.budget, rng)
        available = self.problem.is_available[task]
        points = encode(self.problem.space, self.problem.task_points(task))
        values = np.where(available, self.problem.values[task], 0.0)
        scale = past_scale(self.problem, past)
        values = np.where(available, values - values[available][0], 0.0) / scale
        budget = min(self.budget, int(available.sum()))
        with jax.enable_x64(True):
            learned = self._learn(past)
            return np.asarray(_play_task(learned, self.inducing, points, values, available, budget))

    def _learn(self, past: tuple[Trials, ...]) -> Learned:
        # In the regime `random` the same past serves many tasks.
        if self._last is None or self._last[0] != past:
            root = np.sqrt(self.problem.space.num_parameters)
            lengths = root * np.asarray(LENGTH_SCALES)
            learned = learn(
                pad_past(self.problem, past, self.budget), self.inducing, lengths, np.array(NOISES)
            )
            self._last = past, learned
        return self._last[1]


def choose_inducing(problem: Problem, seed: int) -> np.ndarray:
    """Return the inducing points: the configurations of the table, or `MOST_INDUCING` drawn from them."""
    points = problem.points if problem.shared else problem.points[problem.is_available]
    points = np.unique(encode(problem.space, points), axis=0)
    if len(points) > MOST_INDUCING:
        points = points[np.random.default_rng((seed, 6)).permutation(len(points))[:MOST_INDUCING]]
    return points


def past_scale(problem: Problem, past: tuple[Trials, ...]) -> float:
    """Return the geometric mean of the past tasks' standard deviations; 1 if all of them are zero."""
    spreads = np.array([trials.values(problem).std() for trials in past])
    return float(np.exp(np.log(spreads[spreads > 0]).mean())) if (spreads > 0).any() else 1.0


def pad_past(problem: Problem, past: tuple[Trials, ...], num_trials: int) -> Past:
    """Return the trials of past tasks, standardised, with the number of tasks padded to a power of two."""
    shape = 2 ** int(np.ceil(np.log2(len(past)))), num_trials
    width = encode(problem.space, problem.task_points(0)[:1]).shape[-1]
    points, targets, present = np.zeros((*shape, width)), np.zeros(shape), np.zeros(shape, bool)
    for number, trials in enumerate(past):
        values, count = trials.values(problem), len(trials.rows)
        points[number, :count] = encode(problem.space, trials.points(problem))
        targets[number, :count] = (values - values.mean()) / (values.std() or 1.0)
        present[number, :count] = True
    return Past(points, targets, present)
