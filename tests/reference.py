"""Reference implementations in NumPy and float64, with loops and dense solves, independent of the library.

Nothing here imports jlibo. Where the library has rank-one updates, accelerated proximal gradient and no
block-diagonal matrix, this file has dense inverses, block coordinate descent and an explicit matrix.

| here | paper |
|---|---|
| `lam` | lambda of the meta-learner's loss, equation (1), with 1/N and not 1/(2N) |
| `gram`, `cross`, `diagonal` | K_n, k_n(x), k(x, x) |
| `noise_std` | sigma |
| `norm_bound`, `gain` | B, gamma_n |
"""

import contextlib
from decimal import Decimal, localcontext

import numpy as np
from scipy.stats import norm

# ---------------------------------------------------------------------------------------------- group lasso


def rows_present(design, targets, mask=None):
    """Per task, the rows and targets that the mask keeps: two lists of arrays in float64."""
    rows, values = [], []
    for task in range(len(design)):
        keep = np.ones(len(targets[task]), bool) if mask is None else np.asarray(mask[task], bool)
        rows.append(np.asarray(design[task], np.float64)[keep])
        values.append(np.asarray(targets[task], np.float64)[keep])
    return rows, values


def columns_of_groups(groups, num_features):
    """Per group, the features that belong to it."""
    groups = np.arange(num_features) if groups is None else np.asarray(groups)
    return [np.flatnonzero(groups == group) for group in range(groups.max() + 1)]


def group_norms(coef, groups=None):
    """Norm of each group's coefficients over all tasks."""
    return np.array([np.linalg.norm(coef[:, cols]) for cols in columns_of_groups(groups, coef.shape[1])])


def residuals(design, targets, mask, coef):
    """Per task, targets minus predictions on the rows present."""
    rows, values = rows_present(design, targets, mask)
    return [values[task] - rows[task] @ coef[task] for task in range(len(rows))]


def correlations(design, targets, mask, coef):
    """Minus the gradient of the smooth part, (2/N) X^T (y - X b), in the shape of `coef`."""
    rows, _ = rows_present(design, targets, mask)
    rest = residuals(design, targets, mask, coef)
    num_rows = sum(len(r) for r in rest)
    return np.stack([rows[task].T @ rest[task] for task in range(len(rows))]) * (2 / num_rows)


def group_lasso_objective(design, targets, lam, groups, mask, coef):
    """The loss as the paper prints it: (1/N) ||y - X b||^2 + lam * sum of group norms."""
    rest = np.concatenate(residuals(design, targets, mask, np.asarray(coef, np.float64)))
    return rest @ rest / len(rest) + lam * group_norms(np.asarray(coef, np.float64), groups).sum()


def group_lasso_gap(design, targets, lam, groups, mask, coef):
    """Objective minus the dual value of the best feasible multiple of the residual.

    The dual is D(u) = u.y - (N/4) ||u||^2 subject to ||X_j^T u|| <= lam for every group j. Along the ray
    u = s * (2/N) * residual it is a parabola in s, so the best feasible s is its vertex, clipped.
    """
    coef = np.asarray(coef, np.float64)
    _, values = rows_present(design, targets, mask)
    target = np.concatenate(values)
    rest = np.concatenate(residuals(design, targets, mask, coef))
    num_rows = len(target)
    objective = group_lasso_objective(design, targets, lam, groups, mask, coef)
    if not rest.any():
        return objective
    largest = group_norms(correlations(design, targets, mask, coef), groups).max()
    limit = np.inf if largest == 0 else lam / largest
    scale = np.clip(rest @ target / (rest @ rest), -limit, limit)
    dual = (2 * scale * (rest @ target) - scale**2 * (rest @ rest)) / num_rows
    return objective - dual


def group_lasso_lambda_max(design, targets, groups=None, mask=None):
    """The smallest `lam` whose solution is zero: the largest group norm of (2/N) X^T y."""
    nothing = np.zeros((np.shape(design)[0], np.shape(design)[2]))
    return group_norms(correlations(design, targets, mask, nothing), groups).max()


def kkt_violation(design, targets, lam, groups, mask, coef):
    """Largest distance, over groups, from minus the gradient to the subdifferential of the penalty."""
    coef = np.asarray(coef, np.float64)
    pull = correlations(design, targets, mask, coef)
    worst = 0.0
    for cols in columns_of_groups(groups, coef.shape[1]):
        size = np.linalg.norm(coef[:, cols])
        if size > 0:
            distance = np.linalg.norm(pull[:, cols] - lam * coef[:, cols] / size)
        else:
            distance = max(0.0, np.linalg.norm(pull[:, cols]) - lam)
        worst = max(worst, distance)
    return worst


def block_diagonal(design, targets, groups=None, mask=None):
    """The explicit problem: X[N, m*d] block-diagonal, y[N], and per group its columns in X."""
    rows, values = rows_present(design, targets, mask)
    num_tasks, num_features = len(rows), np.shape(design)[2]
    matrix = np.zeros((sum(len(v) for v in values), num_tasks * num_features))
    start = 0
    for task in range(num_tasks):
        stop = start + len(values[task])
        matrix[start:stop, task * num_features : (task + 1) * num_features] = rows[task]
        start = stop
    columns = [
        np.concatenate([task * num_features + cols for task in range(num_tasks)])
        for cols in columns_of_groups(groups, num_features)
    ]
    return matrix, np.concatenate(values), columns


def _block_minimiser(eigenvalues, eigenvectors, pull, lam):
    """Minimise 1/2 b.H b - pull.b + lam ||b|| for H = V diag(eigenvalues) V^T, exactly.

    Away from zero, (H + (lam / t) I) b = pull with t = ||b||: bisection on t, as ||b(t)|| / t falls in t.
    """
    if np.linalg.norm(pull) <= lam:
        return np.zeros_like(pull)
    turned = eigenvectors.T @ pull
    if lam == 0:
        useful = eigenvalues > 1e-12 * eigenvalues.max()
        return eigenvectors[:, useful] @ (turned[useful] / eigenvalues[useful])

    def solution(size):
        return turned * size / (eigenvalues * size + lam)

    low, high = 0.0, 1.0
    while np.linalg.norm(solution(high)) > high:
        high *= 2
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if np.linalg.norm(solution(middle)) > middle:
            low = middle
        else:
            high = middle
    return eigenvectors @ solution(0.5 * (low + high))


def _newton_step(matrix, target, columns, lam, coef):
    """One Newton step on the groups that are not zero, where the objective is smooth."""
    num_rows = len(target)
    active = [cols for cols in columns if np.any(coef[cols])]
    if not active:
        return np.zeros_like(coef)
    where = np.concatenate(active)
    gradient = -2 / num_rows * matrix[:, where].T @ (target - matrix @ coef)
    hessian = 2 / num_rows * matrix[:, where].T @ matrix[:, where]
    start = 0
    for cols in active:
        block = slice(start, start + len(cols))
        size = np.linalg.norm(coef[cols])
        direction = coef[cols] / size
        gradient[block] += lam * direction
        hessian[block, block] += lam / size * (np.eye(len(cols)) - np.outer(direction, direction))
        start += len(cols)
    step = np.zeros_like(coef)
    # A norm near zero gives a curvature near infinity: skip the step.
    with contextlib.suppress(np.linalg.LinAlgError):
        step[where] = -np.linalg.lstsq(hessian, gradient, rcond=1e-13)[0]
    return step


def group_lasso_solve(design, targets, lam, groups=None, mask=None, tol=1e-12, max_sweeps=5_000):
    """Block coordinate descent with exact block updates, and Newton steps on the support it finds.

    Runs until the duality gap is at most `tol` times (1/N) ||y||^2, and returns (coef[m, d], gap). The gap is
    the certificate: check it before using the solution. A Newton step is taken only if it decreases the
    objective, so that the method remains a descent method.
    """
    matrix, target, columns = block_diagonal(design, targets, groups, mask)
    num_tasks, num_features = np.shape(design)[0], np.shape(design)[2]
    num_rows = len(target)
    hessians = [2 / num_rows * matrix[:, cols].T @ matrix[:, cols] for cols in columns]
    spectra = [np.linalg.eigh(hessian) for hessian in hessians]
    goal = tol * (target @ target) / num_rows

    def objective(flat):
        rest = target - matrix @ flat
        return rest @ rest / num_rows + lam * sum(np.linalg.norm(flat[cols]) for cols in columns)

    coef = np.zeros(matrix.shape[1])
    best_coef, best_gap = coef, np.inf
    for sweep in range(max_sweeps):
        rest = target - matrix @ coef
        for cols, hessian, (eigenvalues, eigenvectors) in zip(columns, hessians, spectra, strict=True):
            pull = 2 / num_rows * matrix[:, cols].T @ rest + hessian @ coef[cols]
            update = _block_minimiser(np.maximum(eigenvalues, 0), eigenvectors, pull, lam)
            rest -= matrix[:, cols] @ (update - coef[cols])
            coef[cols] = update
        if sweep % 5 == 4:
            for _ in range(5):
                step = _newton_step(matrix, target, columns, lam, coef)
                now = objective(coef)
                sizes = [size for size in 0.5 ** np.arange(8) if objective(coef + size * step) < now]
                if not sizes:
                    break
                coef = coef + sizes[0] * step
        shaped = coef.reshape(num_tasks, num_features)
        gap = group_lasso_gap(design, targets, lam, groups, mask, shaped)
        if gap < best_gap:
            best_coef, best_gap = coef.copy(), gap
        if best_gap <= goal:
            break
    return best_coef.reshape(num_tasks, num_features), best_gap


def random_problem(rng, num_tasks, num_rows, group_sizes, unequal=True, collinear=True):
    """A random multi-task problem with difficult properties: dict(design, targets, mask, groups).

    Feature ids of a group are interleaved with those of others. With `unequal`, each task keeps at least one
    row, and absent rows hold 1e3, so that a result that depends on them fails. With `collinear`, some columns
    are exact copies of others and some differ from another by 1e-6.
    """
    num_features = int(np.sum(group_sizes))
    groups = rng.permutation(np.repeat(np.arange(len(group_sizes)), group_sizes))
    design = rng.standard_normal((num_tasks, num_rows, num_features))
    if collinear and num_features >= 4:
        chosen = rng.permutation(num_features)
        count = max(1, num_features // 8)
        sources, copies, nearly = chosen[: 3 * count].reshape(3, count)
        design[:, :, copies] = design[:, :, sources]
        design[:, :, nearly] = design[:, :, sources] + 1e-6 * design[:, :, nearly]
    active = rng.permutation(len(group_sizes))[: max(1, len(group_sizes) // 3)]
    coef = rng.standard_normal((num_tasks, num_features)) * np.isin(groups, active)
    targets = np.einsum("mnd,md->mn", design, coef) + 0.1 * rng.standard_normal((num_tasks, num_rows))
    mask = np.ones((num_tasks, num_rows), bool)
    if unequal:
        present = rng.integers(1, num_rows + 1, size=num_tasks)
        for task in range(num_tasks):
            mask[task] = rng.permutation(num_rows) < present[task]
        design[~mask] = 1e3
        targets[~mask] = 1e3
    return dict(design=design, targets=targets, mask=mask, groups=groups)


# ------------------------------------------------------------------------------------------ Gaussian process


def gp_posterior(gram, cross, diagonal, targets, noise_std):
    """Posterior mean and variance at points, in kernel space and with a zero prior mean.

    `gram[n, n]` among observations, `cross[n, q]` observations to points, `diagonal[q]` prior variances.
    """
    noisy = gram + noise_std**2 * np.eye(len(gram))
    mean = cross.T @ np.linalg.solve(noisy, targets)
    variance = diagonal - np.sum(cross * np.linalg.solve(noisy, cross), axis=0)
    return mean, variance


def exact_posterior(features, variance, indices, targets, noise_std, digits=80):
    """Posterior mean and variance at all rows of `features` after observing some, with `digits` digits.

    The weights have mean zero and independent variances `variance`. Observations of one row enter by their
    average, whose noise is noise_std^2 / count, so that tiny noise does not reduce the accuracy.
    """
    with localcontext() as context:
        context.prec = digits
        exact = np.vectorize(lambda number: Decimal(float(number)), otypes=[object])
        rows, inverse = np.unique(indices, return_inverse=True)
        counts = np.bincount(inverse)
        sums = np.array([exact(targets[inverse == i]).sum() for i in range(len(rows))], object)
        phi, prior_variance = exact(features), Decimal(float(variance))
        cross = prior_variance * (phi[rows] @ phi.T)
        noise = Decimal(float(noise_std)) ** 2
        system = np.concatenate([cross[:, rows], (sums / counts)[:, None], cross], axis=1)
        for i, count in enumerate(counts):
            system[i, i] += noise / int(count)
        for i in range(len(rows)):
            system[i] = system[i] / system[i, i]
            for j in range(len(rows)):
                if j != i:
                    system[j] = system[j] - system[j, i] * system[i]
        solved = system[:, len(rows) :]
        mean = cross.T @ solved[:, 0]
        spread = prior_variance * (phi * phi).sum(1) - (cross * solved[:, 1:]).sum(0)
        return mean.astype(np.float64), spread.astype(np.float64)


def weight_posterior(prior_mean, prior_cov, features, targets, noise_std):
    """Posterior mean and covariance of the weights; `prior_cov` may be singular. `features[n, d]`."""
    noisy = features @ prior_cov @ features.T + noise_std**2 * np.eye(len(features))
    weight_of_data = prior_cov @ features.T @ np.linalg.inv(noisy)
    mean = prior_mean + weight_of_data @ (targets - features @ prior_mean)
    return mean, prior_cov - weight_of_data @ features @ prior_cov


def log_marginal_likelihood(gram, targets, noise_std, prior_mean=0.0):
    """Log density of the targets under N(prior_mean, gram + noise_std^2 I)."""
    noisy = gram + noise_std**2 * np.eye(len(gram))
    rest = targets - prior_mean
    return -0.5 * (
        rest @ np.linalg.solve(noisy, rest) + np.linalg.slogdet(noisy)[1] + len(rest) * np.log(2 * np.pi)
    )


def information_gain(gram, noise_std):
    """Mutual information between the function and the observations: 1/2 logdet(I + K / noise_std^2)."""
    return 0.5 * np.linalg.slogdet(np.eye(len(gram)) + gram / noise_std**2)[1]


# ---------------------------------------------------------------------------------------------- acquisitions


def expected_improvement(mean, std, best):
    """E[max(f - best, 0)] for f ~ N(mean, std^2); at std = 0 the plain improvement."""
    mean, std = np.broadcast_arrays(np.asarray(mean, np.float64), np.asarray(std, np.float64))
    improvement = np.maximum(mean - best, 0.0)
    uncertain = std > 0
    score = (mean[uncertain] - best) / std[uncertain]
    improvement[uncertain] = (mean[uncertain] - best) * norm.cdf(score) + std[uncertain] * norm.pdf(score)
    return improvement


def upper_confidence_bound(mean, std, nu):
    """mean + nu * std."""
    return mean + nu * std


def theoretical_nu(norm_bound, noise_std, gain, delta):
    """Confidence width of Chowdhury and Gopalan: B + sigma * sqrt(2 (gain + 1 + ln(1/delta)))."""
    return norm_bound + noise_std * np.sqrt(2 * (gain + 1 + np.log(1 / delta)))


def oful_radius(norm_bound, gain, delta):
    """Radius of the confidence ellipsoid: norm_bound + sqrt(2 (gain + ln(1/delta)))."""
    return norm_bound + np.sqrt(2 * (gain + np.log(1 / delta)))
