"""A peer process of the suggestion benchmark, run by the interpreter in which the peer is installed.

    python benchmarks/peers_gp.py sklearn|botorch|gpjax DATA.npz

DATA.npz holds `candidates` (their features), `rows` and `rewards` (observations in order), `noise_std`, `nu`.
All peers have the same kernel, the product of features, and fixed hyper-parameters: nothing is fitted. All
compute in double precision. Requests are JSON lines on standard input and responses are JSON lines on
standard output, so that runs can be interleaved with others:

    {"do": "suggest", "size": n}   -> seconds, index of the suggestion, all scores with "scores": true
"""

import importlib
import json
import sys
import time
import warnings
from importlib import metadata

import numpy as np


class Sklearn:
    """GaussianProcessRegressor without an optimiser: a Cholesky of the observations at every call."""

    package = "scikit-learn"

    def __init__(self, data):
        gaussian_process = importlib.import_module("sklearn.gaussian_process")
        kernel = gaussian_process.kernels.DotProduct(sigma_0=0.0, sigma_0_bounds="fixed")
        self.model = gaussian_process.GaussianProcessRegressor(
            kernel, alpha=float(data["noise_std"]) ** 2, optimizer=None
        )
        self.data = data

    def moments(self, size):
        self.model.fit(self.data["rows"][:size], self.data["rewards"][:size])
        return self.model.predict(self.data["candidates"], return_std=True)


class Botorch:
    """SingleTaskGP with a linear kernel and a fixed noise; candidates jointly or one by one."""

    package = "botorch"

    def __init__(self, data):
        self.torch = torch = importlib.import_module("torch")
        self.models = importlib.import_module("botorch.models")
        self.gpytorch = importlib.import_module("gpytorch")
        self.data = data
        self.rows = torch.as_tensor(data["rows"])
        self.rewards = torch.as_tensor(data["rewards"])[:, None]
        self.noise = torch.full_like(self.rewards, float(data["noise_std"]) ** 2)
        together = torch.as_tensor(data["candidates"])
        self.ways = [together, together[:, None, :]]
        self.chosen = {}

    def moments(self, size):
        if size not in self.chosen:
            seconds = [min(self._time(size, way) for _ in range(2)) for way in self.ways]
            self.chosen[size] = self.ways[int(np.argmin(seconds))]
        return self._moments(size, self.chosen[size])

    def _time(self, size, way):
        begin = time.perf_counter()
        self._moments(size, way)
        return time.perf_counter() - begin

    def _moments(self, size, candidates):
        gpytorch = self.gpytorch
        kernel = gpytorch.kernels.LinearKernel().double()
        kernel.variance = 1.0
        model = self.models.SingleTaskGP(
            self.rows[:size],
            self.rewards[:size],
            self.noise[:size],
            covar_module=kernel,
            mean_module=gpytorch.means.ZeroMean(),
            outcome_transform=None,
        )
        model.eval()
        with self.torch.no_grad():
            posterior = model.posterior(candidates)
            mean, variance = posterior.mean, posterior.variance
        return mean.numpy().ravel(), np.sqrt(variance.numpy().ravel())


class Gpjax:
    """A conjugate posterior, compiled once for each number of observations."""

    package = "gpjax"

    def __init__(self, data):
        self.jax = jax = importlib.import_module("jax")
        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_cpu_enable_async_dispatch", False)  # as for jlibo
        gpx = importlib.import_module("gpjax")
        kernel = gpx.kernels.Linear(variance=1.0)
        prior = gpx.gps.Prior(kernel=kernel, mean_function=gpx.mean_functions.Zero(), jitter=1e-12)
        model = prior * gpx.likelihoods.Gaussian(obs_stddev=float(data["noise_std"]))
        candidates = jax.numpy.asarray(data["candidates"])

        @jax.jit
        def moments(rows, rewards):
            past = gpx.Dataset(X=rows, y=rewards[:, None])
            belief = model.predict(candidates, past, covariance="diagonal")
            return belief.mean.ravel(), jax.numpy.sqrt(belief.variance.ravel())

        self.compiled = moments
        self.data = data

    def moments(self, size):
        answer = self.compiled(self.data["rows"][:size], self.data["rewards"][:size])
        return [np.asarray(part) for part in answer]


PEERS = {"sklearn": Sklearn, "botorch": Botorch, "gpjax": Gpjax}


def main():
    name, path = sys.argv[1:]
    warnings.filterwarnings("ignore")
    data = dict(np.load(path))
    peer = PEERS[name](data)
    print(json.dumps({name: metadata.version(peer.package)}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        count = request.get("count", 1)
        begin = time.perf_counter()
        for _ in range(count):
            mean, std = peer.moments(request["size"])
            scores = mean + float(data["nu"]) * std
            index = int(np.argmax(scores))
        answer = dict(seconds=(time.perf_counter() - begin) / count, index=index)
        if request.get("scores"):
            answer["scores"] = [float(score) for score in scores]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
