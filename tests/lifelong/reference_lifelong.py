"""LiBO, F-LiBO, oracle and full as NumPy loops, independent of the library, in the order of the paper.

Nothing here imports jlibo: kernel matrices and a dense solve at every step, lists that grow, a group lasso on
the raw rows. Random draws (values, noise, exploration) are arguments.

| here | paper |
|---|---|
| `num_forced` | n~_s, Algorithm "Forced Exploration Rate to Integer" |
| `meta_kgl`, `client`, `vote` | Meta-KGL, and the two halves of F-Meta-KGL |
| `run` | LiBO, F-LiBO, and the two baselines |
"""

import math

import numpy as np

from tests import reference

TIE = 1e-9
"""Scores this close are a tie: either action is right."""


def num_forced(rates):
    """The paper's residue rule, literally. Works on floats and on fractions."""
    residue, counts = 0, []
    for rate in rates:
        residue = residue + rate - math.floor(rate)
        counts.append(math.floor(rate) + math.floor(residue))
        residue = residue - math.floor(residue)
    return counts


def decreasing_rates(num_tasks, horizon):
    return [math.sqrt(horizon) / task**0.25 for task in range(1, num_tasks + 1)]


def constant_rates(num_tasks, horizon):
    return [math.sqrt(horizon)] * num_tasks


def kernel_matrix(features, groups, support):
    """The average of the base kernels in `support`, or of all of them when it is empty, at all candidates."""
    chosen = sorted(support) or sorted(set(groups))
    total = np.zeros((len(features), len(features)))
    for kernel in chosen:
        columns = [f for f, group in enumerate(groups) if group == kernel]
        total += features[:, columns] @ features[:, columns].T
    return total / len(chosen)


def play(kernel, values, noise, exploration, num_explore, *, nu, noise_std, follow):
    """One task of GP-UCB after `num_explore` forced steps; plays `follow[i]` if it ties for the best."""
    actions, rewards = [], []
    for i in range(len(noise)):
        if i < num_explore:
            action = int(exploration[i])
        else:
            cross = kernel[actions]
            mean, variance = reference.gp_posterior(
                kernel[np.ix_(actions, actions)], cross, np.diag(kernel), np.array(rewards), noise_std
            )
            scores = mean + nu * np.sqrt(np.maximum(variance, 0))
            action = int(np.argmax(scores))
            if scores[action] - scores[follow[i]] < TIE:
                action = int(follow[i])
        actions.append(action)
        rewards.append(values[action] + noise[i])
    return actions, rewards


def solve(rows, targets, lam, groups, tol=1e-9):
    """Group norms of the multi-task group lasso on tasks of unequal length, certified by the duality gap.

    Proximal gradient with momentum that is reset when it overshoots, on (2/N) X^T X and (2/N) X^T y of each
    task. Block coordinate descent (`reference.group_lasso_solve`) stalls where a task has fewer rows than
    features.
    """
    longest = max(len(r) for r in rows)
    design = np.zeros((len(rows), longest, len(groups)))
    padded, mask = np.zeros((len(rows), longest)), np.zeros((len(rows), longest), bool)
    for task, (r, y) in enumerate(zip(rows, targets, strict=True)):
        design[task, : len(r)], padded[task, : len(r)], mask[task, : len(r)] = r, y, True
    curvature = 2 / mask.sum() * np.einsum("snf,sng->sfg", design, design)
    pull = 2 / mask.sum() * np.einsum("snf,sn->sf", design, padded)
    step = 1 / np.linalg.eigvalsh(curvature).max()
    together = np.equal.outer(groups, groups).astype(float)
    coef = ahead = np.zeros_like(pull)
    momentum, gap, goal = 1.0, np.inf, tol * np.mean(padded[mask] ** 2)
    for count in range(200_000):
        moved = ahead + step * (pull - (curvature @ ahead[..., None])[..., 0])
        norms = np.sqrt((moved**2).sum(0) @ together)
        new = moved * np.maximum(1 - step * lam / np.maximum(norms, 1e-300), 0)
        if np.sum((ahead - new) * (new - coef)) > 0:
            momentum = 1.0
        next_momentum = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = new + (momentum - 1) / next_momentum * (new - coef)
        coef, momentum = new, next_momentum
        if count % 100 == 99:
            gap = reference.group_lasso_gap(design, padded, lam, groups, mask, coef)
            if gap <= goal:
                return reference.group_norms(coef, groups)
    raise AssertionError(f"the reference did not converge: gap {gap}, wanted {goal}")


def meta_kgl(rows, targets, lam, omega, groups):
    """Kernels whose norm over all tasks so far exceeds omega * sqrt(number of tasks)."""
    norms = solve(rows, targets, lam, groups)
    return {j for j, norm in enumerate(norms) if norm > omega * math.sqrt(len(rows))}


def client(rows, targets, lam, omega, groups):
    """The selection that one client sends to the server."""
    norms = solve([rows], [targets], lam, groups)
    return {j for j, norm in enumerate(norms) if norm > omega}


def vote(messages, alpha):
    """Kernels that at least a fraction `alpha` of the clients selected."""
    heard = set().union(*messages)
    needed = alpha * len(messages)
    return {j for j in heard if sum(j in message for message in messages) >= needed}


def run(agent, features, groups, tasks, follow, *, support, nu, noise_std, lam, omega, alpha, data):
    """`agent` is oracle, full, libo or flibo; `tasks` a list of (values, noise, exploration draws)."""
    num_tasks, horizon = len(tasks), len(tasks[0][1])
    forced = {
        "libo": num_forced(decreasing_rates(num_tasks, horizon)),
        "flibo": num_forced(constant_rates(num_tasks, horizon)),
    }.get(agent, [0] * num_tasks)
    chosen = set(support) if agent == "oracle" else set(range(max(groups) + 1)) if agent == "full" else set()
    history_rows, history_targets, messages = [], [], []
    out = dict(actions=[], rewards=[], regret=[], support=[], num_explore=forced)
    for (values, noise, exploration), num_explore, hint in zip(tasks, forced, follow, strict=True):
        kernel = kernel_matrix(features, groups, chosen)
        actions, rewards = play(
            kernel, values, noise, exploration, num_explore, nu=nu, noise_std=noise_std, follow=hint
        )
        kept = num_explore if data == "exploration" else horizon
        history_rows.append(features[actions[:kept]])
        history_targets.append(np.array(rewards[:kept]))
        if agent == "libo":
            chosen = meta_kgl(history_rows, history_targets, lam, omega, groups)
        elif agent == "flibo":
            messages.append(client(history_rows[-1], history_targets[-1], lam, omega, groups))
            chosen = vote(messages, alpha)
        out["actions"].append(actions)
        out["rewards"].append(rewards)
        out["regret"].append([values.max() - values[action] for action in actions])
        out["support"].append([j in chosen for j in range(max(groups) + 1)])
    return {name: np.array(value) for name, value in out.items()}
