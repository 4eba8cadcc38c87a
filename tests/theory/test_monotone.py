"""Every formula of numbers is monotone in every argument, and has its limits."""

import math

import numpy as np
import pytest

from jlibo import theory

NUMBERS = dict(beta_min=0.5, omega=0.2, kappa=0.6, noise_std=0.02)
SIZES = dict(num_rows=400.0, num_tasks=5.0, num_kernels=20.0)
GP = dict(horizon=1000.0, num_features=50.0, norm_bound=1.0, noise_std=0.1, delta=0.1)
FEDERATED = dict(
    num_tasks=400,
    num_rows=50.0,
    horizon=2500.0,
    num_kernels=50.0,
    alpha=0.4,
    beta_min=0.5,
    omega=0.2,
    kappa=0.7,
    noise_std=4e-3,
    norm_bound=1.0,
    delta=0.1,
    task_regret=10.0,
)


def without(numbers, *names):
    return {name: value for name, value in numbers.items() if name not in names}


# For each function: its arguments, those in which it rises, and those in which it falls.
CASES = {
    "theorem_lam": (
        theory.theorem_lam,
        dict(num_tasks=5.0, **without(NUMBERS, "noise_std")),
        ("beta_min?", "omega", "kappa"),
        ("num_tasks",),
    ),
    "signal": (
        theory.signal,
        dict(num_rows=400.0, **NUMBERS),
        ("num_rows", "beta_min?", "omega", "kappa"),
        ("noise_std",),
    ),
    "least_rows": (theory.least_rows, NUMBERS, ("noise_std",), ("beta_min?", "omega", "kappa")),
    "rows_needed": (
        theory.rows_needed,
        dict(delta=0.05, **without(SIZES, "num_rows"), **NUMBERS),
        ("num_kernels", "noise_std"),
        ("delta", "num_tasks", "beta_min?", "omega", "kappa"),
    ),
    "tasks_needed": (
        theory.tasks_needed,
        dict(delta=0.05, **without(SIZES, "num_tasks"), **NUMBERS),
        ("num_kernels", "noise_std"),
        ("delta", "num_rows", "beta_min?", "omega", "kappa"),
    ),
    "smallest_beta_min": (
        theory.smallest_beta_min,
        dict(delta=0.05, **SIZES, kappa=0.6, noise_std=0.02),
        ("num_kernels", "noise_std"),
        ("delta", "num_rows", "num_tasks", "kappa"),
    ),
    "recovery_log_failure": (
        theory.recovery_log_failure,
        {**SIZES, **NUMBERS},
        ("num_kernels", "noise_std"),
        ("num_rows", "num_tasks", "beta_min?", "omega", "kappa"),
    ),
    "kappa_from_gram": (
        theory.kappa_from_gram,
        dict(c_d=0.5, c_od=0.01, support_size=3.0),
        ("c_d",),
        ("c_od", "support_size"),
    ),
    "full_kernel_regret": (
        theory.full_kernel_regret,
        dict(**GP, num_kernels=50.0, support_size=5.0),
        ("horizon", "num_features", "norm_bound", "noise_std", "num_kernels"),
        ("delta", "support_size"),
    ),
    "vote_exponent": (
        theory.vote_exponent,
        dict(client_probability=0.9, alpha=0.4),
        ("client_probability", "alpha"),
        (),
    ),
    "kernel_norm": (
        theory.kernel_norm,
        dict(coef_norm=2.0, num_kernels=3.0),
        ("coef_norm", "num_kernels"),
        (),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_monotone_in_every_argument(name):
    function, arguments, rises, falls = CASES[name]
    checked = [one.removesuffix("?") for one in (*rises, *falls)]
    assert set(checked) == set(arguments)
    before = float(function(**arguments))
    assert math.isfinite(before)
    for sign, names in ((1, rises), (-1, falls)):
        for one in names:
            argument = one.removesuffix("?")
            after = float(function(**{**arguments, argument: 1.02 * arguments[argument]}))
            # c_1 counts only where it is the smaller part of the margin: "?" allows equality.
            assert sign * (after - before) > 0 or (one.endswith("?") and after == before), argument


def test_federated_bound_is_monotone():
    total = lambda **changes: float(theory.federated_regret_bound(**{**FEDERATED, **changes}).total)  # noqa: E731
    assert bool(theory.federated_regret_bound(**FEDERATED).reached)
    for name, value in (("horizon", 2600.0), ("norm_bound", 1.1), ("task_regret", 11.0), ("num_tasks", 500)):
        assert total(**{name: value}) > total()
    assert (
        total(num_kernels=1e6) > total() and total(noise_std=5e-3) > total() and total(delta=1e-9) > total()
    )
    assert total(kappa=0.66) > total() and total(beta_min=0.4, omega=0.18) >= total()


def test_limits():
    rest = without(NUMBERS, "noise_std")
    assert theory.least_rows(**rest, noise_std=0.0) == 0
    assert theory.rows_needed(0.05, 5.0, 20.0, **rest, noise_std=0.0) == 0
    assert theory.smallest_beta_min(0.05, 400.0, 5.0, 20.0, kappa=0.6, noise_std=0.0) == 0
    assert theory.theorem_lam(1e12, **rest) < 1e-7
    # With infinitely many tasks, the rows needed are those from which the theorem says anything.
    needed = theory.rows_needed(0.05, 1e12, 20.0, **NUMBERS)
    np.testing.assert_allclose(needed, theory.least_rows(**NUMBERS), rtol=1e-4)
    assert theory.federated_regret_bound(**{**FEDERATED, "noise_std": 1e-9}).wrong_tasks == 1
    assert theory.kappa_from_gram(0.1, 0.1, 5.0) == 0
