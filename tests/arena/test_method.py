"""Methods and cards: what a method receives, and where it does not run."""

import pytest

import jlibo
from jlibo.arena import ENVIRONMENTS, METHODS, Method, SequentialAgent
from jlibo.arena.cards import PRIVILEGES, facts_of


def make(facts, sizes):
    return SequentialAgent(jlibo.FixedPrior(), jlibo.GPTS(noise_std=1.0))


def test_cards_name_known_privileges():
    with pytest.raises(ValueError, match=r"`card` should be names among .*did you mean 'noise_std'"):
        Method("m", "", "", ("noise_sdt",), make)
    with pytest.raises(ValueError, match="`optional` should be facts on the card"):
        Method("m", "", "", ("noise_std",), make, optional=("rank",))


def test_a_method_does_not_run_where_a_fact_or_fresh_contexts_are_missing():
    needs_rank = Method("m", "", "", ("rank",), make)
    assert needs_rank.refusal(ENVIRONMENTS["low-rank-ball"]) is None
    assert needs_rank.refusal(ENVIRONMENTS["gaussian-arms"]) == "the environment has no rank"
    optional = Method("m", "", "", ("rank",), make, optional=("rank",))
    assert optional.refusal(ENVIRONMENTS["gaussian-arms"]) is None
    fresh = Method("m", "", "", ("fresh_contexts",), make)
    assert fresh.refusal(ENVIRONMENTS["low-rank-contexts"]) is None
    assert fresh.refusal(ENVIRONMENTS["sparse-grid"]) == "needs fresh contexts"
    picky = Method(
        "m", "", "", (), make, refuses=lambda one: "too many features" if one.num_features > 10 else None
    )
    assert picky.refusal(ENVIRONMENTS["sparse-grid"]) == "too many features"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_the_arena_is_described(name):
    method = METHODS[name]
    assert method.name == name
    assert method.summary.endswith(".")
    assert set(method.card) <= set(PRIVILEGES)
    assert set(facts_of(method.card)) <= set(method.card)
    assert method.oracle in METHODS
    assert any(method.refusal(environment) is None for environment in ENVIRONMENTS.values())
