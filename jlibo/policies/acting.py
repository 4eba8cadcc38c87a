"""The action that a policy plays in any action set: a ball, an ellipsoid, a box, or finitely many actions."""

from collections.abc import Callable

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from jlibo.actions.base import AbstractActionSet, Action
from jlibo.actions.confidence import leading_directions
from jlibo.belief.candidates import Belief
from jlibo.belief.posterior import Posterior, belief_at
from jlibo.front_door import front_door
from jlibo.policies.base import AbstractPolicy


@front_door
def choose_action(
    policy: AbstractPolicy, posterior: Posterior, actions: AbstractActionSet, *, key: PRNGKeyArray
) -> Action:
    """Return the action with the highest score of a policy.

    **Arguments:**

    - `policy`: computes the scores.
    - `posterior`: the posterior over the weights.
    - `actions`: the set, with as many features as the posterior has weights.
    - `key`: random key of the policy and of the search in sets that are not finite.

    **Returns:** an `Action`.

    ```python
    import jax

    import jlibo
    from jlibo.actions import Ball
    from jlibo.policies import choose_action

    policy = jlibo.GPUCB(nu=2.0, noise_std=0.1)
    posterior = jlibo.posterior.init(jlibo.full_prior(range(3)), policy.noise_std)
    action = choose_action(policy, posterior, Ball(1.0, 3), key=jax.random.key(0))
    ```
    """
    return act(policy, lambda rows: belief_at(posterior, rows), posterior, actions, key=key)


def act(
    policy: AbstractPolicy,
    belief_fn: Callable[[Float[Array, "points features"]], Belief],
    posterior: Posterior,
    actions: AbstractActionSet,
    *,
    key: PRNGKeyArray,
) -> Action:
    """Return the action with the highest score, for a belief in any units.

    **Arguments:**

    - `belief_fn`: the belief at points, given by their features.
    - `posterior`: the posterior of the belief; the search begins where it has a large mean or variance.
    """
    key_power, key_search = jax.random.split(jax.random.fold_in(key, 1))
    # The same key for all points: a policy that samples a function must sample the same one.
    return actions.maximise(
        lambda rows: policy.scores(belief_fn(rows), key=key),
        directions=leading_directions(posterior.mean, posterior.factor, key=key_power),
        key=key_search,
    )
