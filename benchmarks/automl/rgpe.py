"""The method `rgpe`: a ranking-weighted ensemble of Gaussian processes (Feurer, Letham & Bakshy 2018).

Each past task has a Gaussian process of its own (BoTorch's `SingleTaskGP` on standardised scores), and so
has the new task. The ensemble has the mean sum_i w_i mu_i and the variance sum_i w_i^2 var_i. The weight of a
model is the share of posterior samples in which it misranks the fewest pairs of the new task's trials. For
the new task's own model the samples are leave-one-out predictions.

A past model whose median loss exceeds the 95th percentile of the new model's loss is left out, which prevents
weight dilution. With fewer than `LEAST_TRIALS` trials the past models have equal weights. The next
configuration has the largest log expected improvement; the first has the largest mean.

Fits take nearly all of the time. The hyper-parameters of the new task's model are fitted at every
`REFIT_EVERY`-th trial, as in `empirical_gp`.
"""

import functools
import warnings

import jax
import numpy as np

from benchmarks.automl.peers import fitted_gp
from benchmarks.automl.problem import Problem, encode
from benchmarks.automl.regimes import Trials, random_run
from jlibo.policies.log_expected_improvement import log_gain

NEEDS = ("botorch", "gpytorch", "torch")
"""The packages of the method."""
NUM_SAMPLES = 256
LEAST_TRIALS = 3
"""Fewest trials for weights from ranks; two trials have one pair."""
REFIT_EVERY = 3
_log_gain = jax.jit(log_gain)


def added_loss(predicted: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the number of misranked ordered pairs with the last trial, in samples [..., trial].

    The loss of a sample is the sum of these numbers over its trials.
    """
    rest, last = predicted[..., :-1], predicted[..., -1:]
    wrong = ((rest < last) ^ (scores[:-1] < scores[-1])).sum(-1)
    return wrong + ((last < rest) ^ (scores[-1] < scores[:-1])).sum(-1)


def leave_one_out_loss(predicted: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the same for leave-one-out samples: each is compared with the scores of the other trials."""
    wrong = (predicted[:, :, None] < scores[None, None, :]) ^ (scores[:, None] < scores[None, :])
    wrong[:, np.arange(len(scores)), np.arange(len(scores))] = False
    return wrong.sum((1, 2))


def rank_weights(losses: np.ndarray, own: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the weights of the past models and, last, of the new model.

    `losses` are those of the past models, [model, sample], and `own` those of the new one, [sample]. In a
    sample with equal losses the new model wins, or else a random one of the best past models.
    """
    kept = np.median(losses, axis=1) <= np.percentile(own, 95)
    everything = np.vstack([np.where(kept[:, None], losses, np.inf), own[None]])
    best = everything == everything.min(0)
    chance = np.where(best, rng.random(everything.shape), -1.0)
    chance[-1] = np.where(best[-1], 2.0, -1.0)
    winners = chance.argmax(0)
    return np.bincount(winners, minlength=len(everything)) / everything.shape[1]


class RGPE:
    """The method `rgpe`; call it with the past, a task and a generator."""

    def __init__(self, problem: Problem, budget: int):
        self.problem, self.budget = problem, budget
        self._past_model = functools.lru_cache(maxsize=None)(self._fit_past)

    def __call__(self, past: tuple[Trials, ...], task: int, rng: np.random.Generator) -> np.ndarray:
        if not past:
            return random_run(self.problem, task, self.budget, rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._play(past, task, rng)

    def _fit_past(self, trials: Trials):
        import torch

        points = torch.as_tensor(encode(self.problem.space, trials.points(self.problem)))
        values = trials.values(self.problem)
        targets = torch.as_tensor((values - values.mean()) / (values.std() or 1.0))[:, None]
        return fitted_gp(points, targets)

    def _play(self, past: tuple[Trials, ...], task: int, rng: np.random.Generator) -> np.ndarray:
        import torch

        torch.manual_seed(int(rng.integers(2**31)))
        points, values, available = self.problem.of_task(task)
        pool = torch.as_tensor(encode(self.problem.space, points))
        models = [self._past_model(trials) for trials in past]
        means, variances, samples = [], [], []
        with torch.no_grad():
            for one in models:
                predicted = one.posterior(pool)
                means.append(predicted.mean[:, 0].numpy())
                variances.append(predicted.variance[:, 0].numpy())
                samples.append(predicted.sample(torch.Size([NUM_SAMPLES]))[..., 0].numpy())
        means, variances, samples = np.stack(means), np.stack(variances), np.stack(samples)
        losses = np.zeros(samples.shape[:2])
        run: list[int] = []
        model = None
        while len(run) < min(self.budget, len(points)):
            tried = values[run]
            scores = (tried - tried.mean()) / (tried.std() or 1.0) if run else tried
            mean, variance = means.mean(0), variances.sum(0) / len(past) ** 2
            if len(run) >= LEAST_TRIALS:
                targets = torch.as_tensor(scores)[:, None]
                if model is None or len(run) % REFIT_EVERY == 0:
                    model = fitted_gp(pool[run], targets)
                else:
                    model = conditioned(model, pool[run], targets)
                own = leave_one_out_loss(leave_one_out_samples(model, rng), scores)
                weights = rank_weights(losses, own, rng)
                with torch.no_grad():
                    predicted = model.posterior(pool)
                mean = weights[:-1] @ means + weights[-1] * predicted.mean[:, 0].numpy()
                variance = weights[:-1] ** 2 @ variances + weights[-1] ** 2 * predicted.variance[:, 0].numpy()
            gain = mean
            if run:
                std = np.sqrt(np.maximum(variance, 1e-12))
                gain = np.log(std) + np.asarray(_log_gain((mean - scores.max()) / std), float)
            gain[run] = -np.inf
            run.append(int(np.argmax(gain)))
            losses += added_loss(samples[..., run], values[run])
        return available[run]


def conditioned(model, points, targets):
    """Return a Gaussian process on other trials with the hyper-parameters of `model`."""
    from botorch.models import SingleTaskGP
    from botorch.models.transforms import Standardize

    new = SingleTaskGP(points, targets, outcome_transform=Standardize(m=1))
    values = model.state_dict()
    own = {name: value for name, value in values.items() if not name.startswith("outcome_transform")}
    new.load_state_dict(new.state_dict() | own)
    return new.eval()


def leave_one_out_samples(model, rng: np.random.Generator) -> np.ndarray:
    """Return samples [sample, trial] of each trial's score, predicted from the other trials."""
    import torch

    with torch.no_grad():
        model.train()
        prior = model(*model.train_inputs)
        model.eval()
        covariance = model.likelihood(prior).covariance_matrix
        precision = torch.linalg.inv(covariance).numpy()
        residual = (model.train_targets - prior.mean).numpy()
        mean = model.train_targets.numpy() - precision @ residual / np.diagonal(precision)
        transform = model.outcome_transform
        shift, scale = float(transform.means.squeeze()), float(transform.stdvs.squeeze())
    std = 1 / np.sqrt(np.diagonal(precision))
    draws = rng.standard_normal((NUM_SAMPLES, len(mean)))
    return shift + scale * (mean + std * draws)
