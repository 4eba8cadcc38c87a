"""One entry for every policy, meta-learner, scaling and environment of the package.

Each entry maps a name to a function of a seed that returns an instance: the seed changes only numbers, so
that one program runs all seeds. `concrete_classes` finds the classes of the package; a class without an entry
fails `test_every_class_is_in_the_table`.
"""

import importlib
import inspect
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np

import jlibo
from jlibo import (
    GPTS,
    GPUCB,
    OFUL,
    AbstractPolicy,
    AdaptiveMetaKGL,
    ConstantExploration,
    Cosine,
    ExpectedImprovement,
    FederatedMetaKGL,
    FixedPrior,
    FunctionEnv,
    Greedy,
    LogExpectedImprovement,
    MetaKeL,
    MetaKGL,
    Prior,
    RawRewards,
    SelfTunedMetaKGL,
    Standardise,
    SyntheticEnv,
    TableEnv,
    TheoreticalNu,
    Uniform,
    full_prior,
)

FEATURES = Cosine(4)
NUM_TASKS, HORIZON, NUM_CANDIDATES = 3, 5, 7
POINTS = np.sort(np.random.default_rng(0).random((NUM_CANDIDATES, 1)), axis=0)  # no ties, as on a grid

POLICIES = {
    # Python ints and floats; different seeds give a sweep.
    "gp_ucb": lambda seed: GPUCB(10.0 + seed, 0.1),
    "gp_ucb_theory": lambda seed: GPUCB(TheoreticalNu(1 + seed, 0.1, 0.1), 0.1),
    "gp_ts": lambda seed: GPTS(0.1, 1 + seed),
    "oful": lambda seed: OFUL(1 + seed, 0.1, 0.1),
    "greedy": lambda seed: Greedy(0.1 + seed),
    "expected_improvement": lambda seed: ExpectedImprovement(0.1, 0.2 * seed),
    "log_expected_improvement": lambda seed: LogExpectedImprovement(0.1, 0.2 * seed),
    "uniform": lambda seed: Uniform(1 + seed),
}


class OneOf(AbstractPolicy):
    """One of several policies, selected by index, so that all policies share a program."""

    policies: list[AbstractPolicy]
    number: jax.Array

    @property
    def noise_std(self):
        return jnp.stack([jnp.asarray(policy.noise_std) for policy in self.policies])[self.number]

    def scores(self, belief, *, key):
        branches = [lambda b, k, policy=policy: policy.scores(b, key=k) for policy in self.policies]
        return jax.lax.switch(self.number, branches, belief, key)


FEW = ConstantExploration(0.7)  # forced steps in every task, but not all steps
LEARNERS = {
    "full": lambda seed: FixedPrior(),
    "full_matrix": lambda seed: FixedPrior(
        Prior(np.zeros(4), jnp.diag(full_prior(FEATURES.groups).covariance))
    ),
    "mean_and_covariance": lambda seed: FixedPrior(
        Prior(np.arange(4.0) + seed, np.eye(4) / 8 + 1 / (8 + seed))
    ),
    "meta_kgl": lambda seed: MetaKGL(0.2 + 0.1 * seed, 0.05, exploration=FEW, tol=1e-9),
    "meta_kgl_noise": lambda seed: MetaKGL(
        0.2 + 0.1 * seed, 0.05, lam_scaling="noise", exploration=FEW, tol=1e-9
    ),
    "meta_kgl_estimated": lambda seed: MetaKGL(
        2.0 + seed, 0.5, lam_scaling="estimated", omega_scaling="penalty", exploration=FEW, tol=1e-9
    ),
    "meta_kgl_bracket": lambda seed: MetaKGL(
        0.1 + 0.1 * seed, 0.05, lam_scaling="bracket", omega_scaling="rewards", exploration=FEW, tol=1e-9
    ),
    "federated": lambda seed: FederatedMetaKGL(0.1 + 0.1 * seed, 0.05, 0.5, data="all", tol=1e-9),
    "meta_kel": lambda seed: MetaKeL(0.2 + 0.1 * seed, data="all", exploration=FEW, tol=1e-9),
    "meta_kgl_latest": lambda seed: MetaKGL(
        0.2 + 0.1 * seed, 0.05, lam_scaling="sqrt", exploration=FEW, tol=1e-9, max_past=2
    ),
    "self_tuned": lambda seed: SelfTunedMetaKGL(0.1 + 0.1 * seed, exploration=FEW),
    "adaptive": lambda seed: AdaptiveMetaKGL(0.1 + 0.1 * seed, 0.1 + 0.1 * seed),
    "adaptive_latest": lambda seed: AdaptiveMetaKGL(0.1 + 0.1 * seed, 0.1 + 0.1 * seed, max_past=2),
}
SCALINGS = {"raw": lambda seed: RawRewards(), "standardise": lambda seed: Standardise(1.0 + seed, 2 + seed)}


def _table(seed, dtype, own):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(NUM_TASKS + 1, NUM_CANDIDATES))
    values[:, 1 + seed] = np.nan
    points = rng.random((*values.shape, 1)) if own else POINTS
    env = TableEnv(values.astype(dtype), points.astype(dtype), noise_std=0.1 + seed)
    return env.shuffled(key=jax.random.key(seed))


def _parabola(point, centre):
    return -jnp.sum((point - centre.astype(point.dtype)) ** 2)  # the returned dtype is that of the rewards


def _centre(index, key):
    return jax.random.uniform(key)


ENVS = {
    "synthetic": lambda seed, dtype: SyntheticEnv.draw(
        FEATURES, support_size=2, candidates=POINTS.astype(dtype), key=jax.random.key(seed)
    ),
    "table": lambda seed, dtype: _table(seed, dtype, own=False),
    "table_of_own_candidates": lambda seed, dtype: _table(seed, dtype, own=True),
    "function": lambda seed, dtype: FunctionEnv(
        jnp.asarray(POINTS, dtype) ** (1 + seed), _parabola, _centre, 0.1 + seed
    ),
}


def concrete_classes(base: type) -> set[type]:
    """Return the classes of the package that implement `base`, including those that are not re-exported.

    The meta-learners of the arena have a table and a contract test of their own in tests/arena/methods.
    """
    for module in pkgutil.walk_packages(jlibo.__path__, "jlibo."):
        if not module.name.startswith(("jlibo.integrations", "jlibo.plot", "jlibo.cli", "jlibo.sweeps.dask")):
            importlib.import_module(module.name)

    def below(parent: type) -> set[type]:
        return {parent}.union(*(below(child) for child in parent.__subclasses__()))

    found = {cls for cls in below(base) if cls.__module__.startswith("jlibo.")}
    return {
        cls for cls in found if not (inspect.isabstract(cls) or cls.__module__.startswith("jlibo.arena."))
    }
