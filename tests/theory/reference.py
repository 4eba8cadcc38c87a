"""Independent NumPy versions of the formulas in `jlibo.theory`, and a brute-force kappa."""

import itertools
import math

import numpy as np
from scipy import optimize


def kappa_brute_force(design: np.ndarray, support_size: int) -> float:
    """kappa of one task with groups of one feature, by one convex problem per support and sign pattern.

    For a support J and the signs of b on J, the denominator is linear: minimise b^T G b subject to
    sum_J |b_j| = 1 and sum_{not J} |b_j| <= 3, with b = u - v outside of J.
    """
    num_rows, num_features = design.shape
    gram = design.T @ design / num_rows
    best = math.inf
    for support in itertools.combinations(range(num_features), support_size):
        outside = [j for j in range(num_features) if j not in support]
        for signs in itertools.product((1.0, -1.0), repeat=support_size - 1):
            columns = np.zeros((num_features, support_size + 2 * len(outside)))
            for place, (j, sign) in enumerate(zip(support, (1.0, *signs), strict=True)):
                columns[j, place] = sign
            for place, j in enumerate(outside):
                columns[j, support_size + 2 * place] = 1.0
                columns[j, support_size + 2 * place + 1] = -1.0
            matrix = columns.T @ gram @ columns
            total = np.zeros(matrix.shape[0])
            total[:support_size] = 1.0
            rest = 1.0 - total
            answer = optimize.minimize(
                lambda x, matrix=matrix: x @ matrix @ x,
                total / support_size,
                jac=lambda x, matrix=matrix: 2 * matrix @ x,
                bounds=[(0, None)] * len(total),
                constraints=[
                    {"type": "eq", "fun": lambda x, w=total: w @ x - 1, "jac": lambda x, w=total: w},
                    {"type": "ineq", "fun": lambda x, w=rest: 3 - w @ x, "jac": lambda x, w=rest: -w},
                ],
                method="SLSQP",
                options={"ftol": 1e-12, "maxiter": 300},
            )
            best = min(best, max(answer.fun, 0.0))
    return math.sqrt(best)


def recovery_probability(rows, tasks, kernels, beta_min, omega, kappa, noise_std, exponent_factor=0.5):
    width = min(omega, beta_min - omega)
    if width <= 0:
        return 0.0
    ratio = width * kappa**2 * math.sqrt(rows) / (32 * noise_std) if noise_std > 0 else math.inf
    if not ratio > 1:
        return 0.0
    return max(1 - kernels * math.exp(-min(exponent_factor * tasks * (ratio - 1) ** 2, 700)), 0.0)


def design_failure(design, lam, noise_std, groups):
    """Of every group, the bound of App. D with the whole block-diagonal matrix written out."""
    num_tasks, num_rows, num_features = design.shape
    whole = np.zeros((num_tasks * num_rows, num_tasks * num_features))
    for s in range(num_tasks):
        rows, columns = (
            slice(s * num_rows, (s + 1) * num_rows),
            slice(s * num_features, (s + 1) * num_features),
        )
        whole[rows, columns] = design[s]
    answer = []
    for group in range(max(groups) + 1):
        chosen = np.tile(np.asarray(groups) == group, num_tasks)
        part = whole[:, chosen]
        excess = lam * len(whole) / (4 * noise_std) - math.sqrt(np.trace(part @ part.T))
        norm = np.linalg.norm(part @ part.T, 2)
        answer.append(math.exp(-(excess**2) / (2 * norm)) if excess > 0 else 1.0)
    return np.asarray(answer)


def tasks_until_recovery(counts, kernels, beta_min, omega, kappa, noise_std, delta):
    width = min(omega, beta_min - omega)
    total, num_tasks = sum(counts), len(counts)
    ratio = math.sqrt(total / num_tasks) * width * kappa**2 / (32 * noise_std)
    if ratio <= 1:
        return num_tasks, False
    needed = 2 * counts[0] * math.log(4 * num_tasks * kernels / delta) / (ratio - 1) ** 2
    for task in range(1, num_tasks + 1):
        if sum(counts[:task]) >= needed:
            return task, True
    return num_tasks, False


def gp_ucb_regret(horizon, num_features, norm_bound, noise_std, delta):
    gain = num_features / 2 * math.log(1 + horizon / ((1 + 2 / horizon) * num_features))
    width = norm_bound + noise_std * math.sqrt(2 * (gain + 1 + math.log(1 / delta)))
    return 2 * width * math.sqrt(4 * (horizon + 2) * gain)
