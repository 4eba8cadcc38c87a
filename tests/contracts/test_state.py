"""A learner that changes the structure of its state between tasks raises an error with its name."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from jlibo import GPUCB, AbstractMetaLearner, FixedPrior, MetaKGL, NoExploration, Standardise, run_lifelong
from jlibo.lifelong.offline import run_offline
from jlibo.meta.base import info_of, selected_prior
from tests.contracts.table import ENVS, FEATURES, HORIZON, NUM_TASKS

ENV = ENVS["table"](0, "float32")
KEY = jax.random.key(0)
SIZES = dict(num_tasks=NUM_TASKS, horizon=HORIZON)


class Counting(AbstractMetaLearner):
    """Counts tasks in its state; `after` makes the state that `update` returns."""

    first: object = eqx.field(static=True)
    after: object = eqx.field(static=True)
    exploration: NoExploration = NoExploration()
    data: str = "all"
    noise_std: None = None

    def init(self, sizes):
        return self.first()

    def prior(self, state, sizes):
        return selected_prior(jnp.zeros(sizes.num_groups, bool), sizes)

    def update(self, state, data, sizes):
        return self.after(state), info_of(jnp.zeros(sizes.num_groups, bool), None, sizes)

    def learn(self, past, num_done, sizes):
        return self.init(sizes), info_of(jnp.zeros(sizes.num_groups, bool), None, sizes)


def count():
    return {"count": jnp.zeros((), jnp.float32)}


BAD = {
    "dtype": (
        lambda state: {"count": state["count"].astype("float64") + 1},
        "'count': types: float32 != float64",
    ),
    "shape": (lambda state: {"count": jnp.ones(2, "float32")}, r"'count': shapes: \(\) != \(2,\)"),
    "structure": (lambda state: {"count": state["count"], "more": state["count"]}, "more"),
    "number": (lambda state: {"count": 1.5}, "'count': types: float32 != float64"),
}


@pytest.mark.parametrize("after, message", BAD.values(), ids=BAD)
def test_changed_state_structure_names_the_learner(after, message):
    learner = Counting(count, after)
    expected = r"`Counting.update\(...\)\[0\]` should be a state of the structure(.|\n)*" + message
    with pytest.raises(ValueError, match=expected):
        run_lifelong(ENV, FEATURES, GPUCB(1.0, 0.1), learner, **SIZES, key=KEY)
    with pytest.raises(ValueError, match=expected):
        run_offline(
            ENV, FEATURES, GPUCB(1.0, 0.1), {"a": learner}, num_tasks=2, num_rows=3, horizon=2, key=KEY
        )


@pytest.mark.parametrize(
    "first, after",
    [
        (count, lambda state: {"count": state["count"] + 1}),
        (lambda: {"count": 0.0}, lambda state: {"count": (state["count"] + 1).astype("float32")}),
        (lambda: {"count": 0, "none": None}, lambda state: {"count": state["count"] + 1, "none": None}),
        (lambda: (), lambda state: ()),
        (lambda: jax.random.key(0), lambda state: jax.random.split(state)[0]),
    ],
    ids=["array", "weak number", "whole number", "nothing", "key"],
)
def test_states_that_scan_accepts_are_accepted(first, after):
    run = lambda: run_lifelong(ENV, FEATURES, GPUCB(1.0, 0.1), Counting(first, after), **SIZES, key=KEY)  # noqa: E731
    assert jax.eval_shape(run).regret.shape == (NUM_TASKS, HORIZON)


@pytest.mark.parametrize(
    "learner, scaling", [(MetaKGL(0.1, 0.1), None), (FixedPrior(), Standardise())], ids=["learner", "scaling"]
)
def test_carry_of_a_different_run_is_refused(learner, scaling):
    run = lambda learner, **options: run_lifelong(  # noqa: E731
        ENV, FEATURES, GPUCB(1.0, 0.1), learner, **SIZES, **options, key=KEY
    )
    first = jax.eval_shape(lambda: run(FixedPrior(), tasks=range(1)))
    carry = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), first.carry)
    options = {} if scaling is None else {"scaling": scaling}
    with pytest.raises(ValueError, match="`carry` should be the `carry` of a run of the same agents"):
        run(learner, tasks=range(1, 3), carry=carry, **options)
