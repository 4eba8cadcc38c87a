"""The private ballot: its noise, its release after a crash, and randomised response."""

import json
import math
import sqlite3

import numpy as np
import pytest

from jlibo import privacy
from jlibo.federated import BallotFile
from jlibo.privacy.local import unbiased_counts
from tests.federated.ballots import NUM_KERNELS, make_rules, vote

dp = pytest.importorskip("opendp.prelude", reason="OpenDP is not installed")

from jlibo.federated.randomness import flipped, response, with_noise  # noqa: E402

PRIVATE = dict(mechanism="toeplitz", epsilon=1.0, delta=1e-5, max_votes=1, horizon=200)


def cast_all(ballot, numbers):
    for number in numbers:
        ballot.cast(f"client {number}", vote(number))


@pytest.mark.parametrize("mechanism", ["toeplitz", "gnmax"])
def test_release_after_a_crash_is_the_same(tmp_path, mechanism):
    path, rules = str(tmp_path / "ballot.db"), make_rules(**{**PRIVATE, "mechanism": mechanism})
    ballot = BallotFile.open(path, rules)
    cast_all(ballot, range(12))
    before = ballot.releases(), ballot.estimates()
    del ballot  # as if the process had ended
    for _ in range(3):
        with BallotFile.open(path, rules) as again:
            assert (again.releases(), again.estimates()) == before
            assert again.cast("client 3", vote(3)) == "repeated"
            assert (again.releases(), again.estimates()) == before
    with BallotFile.open(path, rules) as again:
        cast_all(again, range(12, 15))
        assert again.releases()[:12] == before[0]


def test_supports_follow_from_the_stored_noise(tmp_path):
    """Everything that is released is computed from rows to which noise was added before they were stored."""
    path = str(tmp_path / "ballot.db")
    with BallotFile.open(path, make_rules(**PRIVATE)) as ballot:
        cast_all(ballot, range(20))
        releases = ballot.releases()
    rows = sqlite3.connect(path).execute("SELECT noisy FROM votes ORDER BY number").fetchall()
    noisy = np.asarray([json.loads(row) for (row,) in rows])
    weights = privacy.toeplitz_weights(200)
    for release in releases[3:]:
        s = release.num_clients
        estimates = weights[:s][::-1] @ noisy[:s]
        assert release.support == tuple(np.flatnonzero(estimates >= 0.25 * s))


def test_noise_has_the_calibrated_scale_and_is_independent(tmp_path):
    scale = privacy.toeplitz_scale(1.0, 1e-5, max_selected=10, horizon=200)
    weights, drawn = privacy.toeplitz_weights(200), []
    for number in range(10):
        path = str(tmp_path / f"{number}.db")
        with BallotFile.open(path, make_rules(**PRIVATE)) as ballot:
            cast_all(ballot, range(30))
        rows = sqlite3.connect(path).execute("SELECT noisy FROM votes ORDER BY number").fetchall()
        noisy = np.asarray([json.loads(row) for (row,) in rows])
        votes = np.zeros((30, NUM_KERNELS))
        for place in range(30):
            votes[place, list(vote(place).selected)] = 1
        exact = np.asarray([weights[: s + 1][::-1] @ votes[: s + 1] for s in range(30)])
        drawn.append(noisy - exact)
    values = np.asarray(drawn).ravel()  # 3,600 numbers
    assert values.std() == pytest.approx(scale, rel=0.05)
    assert abs(values.mean()) < 4 * scale / math.sqrt(len(values))
    first, second = np.asarray(drawn)[:, :-1].ravel(), np.asarray(drawn)[:, 1:].ravel()
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.08


def test_noise_costs_no_more_than_the_calibration_says():
    """OpenDP's own accounting of one release, for the sensitivity of a vote."""
    scale = privacy.toeplitz_scale(1.0, 1e-5, max_selected=10, horizon=200)
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=NUM_KERNELS)
    from jlibo.federated.randomness import GRANULARITY

    measure = dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=scale, k=GRANULARITY)
    norm = math.sqrt(10) * privacy.toeplitz_norm(200)
    mu = privacy.gaussian_mu(1.0, 1e-5)
    assert math.sqrt(2 * measure.map(norm)) == pytest.approx(mu, rel=1e-9)


def test_noise_is_on_a_grid_and_never_repeats():
    values = np.linspace(0, 3, 50)
    first, second = with_noise(values, 5.0), with_noise(values, 5.0)
    assert (first != second).all()
    assert (first * 2**40 == np.round(first * 2**40)).all()


@pytest.mark.parametrize("epsilon", [0.5, 4.0, 12.0])
def test_epsilon_of_randomised_response_is_that_of_opendp(epsilon):
    flip = privacy.flip_probability(epsilon, max_selected=10)
    assert response(10, flip).map(1) == pytest.approx(epsilon, abs=1e-9)


def test_randomised_response_is_unbiased():
    truth = np.zeros((3000, NUM_KERNELS), bool)
    for row in range(3000):
        truth[row, list(vote(row % 40).selected)] = True
    flip = privacy.flip_probability(6.0, max_selected=10)
    sent = np.asarray([flipped(row, 10, flip) for row in truth])
    estimate = unbiased_counts(sent.sum(0), len(sent), flip)
    error = math.sqrt(len(sent) * flip * (1 - flip)) / (1 - 2 * flip)
    # The draws are not seeded: with 3 standard errors, one run in ten would fail by chance.
    assert (np.abs(estimate - truth.sum(0)) <= 5 * error).all()
    assert (sent ^ truth).mean() == pytest.approx(flip, abs=0.01)
    packed = [np.packbits(row, bitorder="little").tobytes() for row in sent]
    theirs = np.asarray(dp.m.debias_randomized_response_bitvec(packed, 2 * flip))
    np.testing.assert_allclose(theirs[:NUM_KERNELS], estimate)


def test_local_ballot_counts_randomised_votes(tmp_path):
    rules = make_rules(mechanism="local", epsilon=6.0, max_votes=1)
    flip = privacy.flip_probability(6.0, max_selected=10)
    with BallotFile.open(tmp_path / "ballot.db", rules) as ballot:
        from jlibo.federated import Vote

        wide = Vote("a" * 32, tuple(range(NUM_KERNELS)))  # more than K bits are right here
        assert ballot.cast("wide", wide) == "counted"
        cast_all(ballot, range(5))
        expected = unbiased_counts(np.asarray(ballot.counts()), 6, flip)
        np.testing.assert_allclose(ballot.estimates(), expected)
