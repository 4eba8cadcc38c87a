"""Calibration: published numbers, exact formulas, and the privacy of a whole transcript."""

import math

import numpy as np
import pytest

from jlibo import privacy

DELTA = 1e-5


@pytest.mark.parametrize("epsilon, mu", [(0.5, 0.1422), (1, 0.2681), (2, 0.5016), (4, 0.9249), (8, 1.666)])
def test_mu_is_the_known_one(epsilon, mu):
    assert privacy.gaussian_mu(epsilon, DELTA) == pytest.approx(mu, abs=5e-5 if epsilon < 8 else 5e-4)


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.1])
@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 7.0, 50.0])
def test_mu_delta_and_epsilon_are_inverse(epsilon, delta):
    mu = privacy.gaussian_mu(epsilon, delta)
    assert privacy.gaussian_delta(mu, epsilon) <= delta
    assert privacy.gaussian_delta(mu * (1 + 1e-9), epsilon) > delta
    assert privacy.gaussian_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-7)


def root_of(horizon):
    """Return the lower triangular Toeplitz matrix C."""
    rows, columns = np.indices((horizon, horizon))
    return np.where(rows >= columns, privacy.toeplitz_weights(horizon)[np.maximum(rows - columns, 0)], 0.0)


def test_toeplitz_weights_square_to_the_prefix_sums():
    weights = privacy.toeplitz_weights(50)
    root = np.array(
        [[weights[row - column] if row >= column else 0.0 for column in range(50)] for row in range(50)]
    )
    np.testing.assert_allclose(root @ root, np.tril(np.ones((50, 50))), atol=1e-12)


def transcript_mu(horizon, scale, changes):
    """Return the exact mu of all releases of counts, given what a client adds to the votes at each time.

    The releases are A x + scale C z with standard normal z: an ordinary Gaussian mechanism with a covariance.
    """
    root = root_of(horizon)
    covariance = scale**2 * root @ root.T
    shift = np.cumsum(changes, axis=0)  # of the exact counts, [time, kernel]
    return math.sqrt(np.sum(shift * np.linalg.solve(covariance, shift)))


@pytest.mark.parametrize("neighbours", privacy.NEIGHBOURS)
@pytest.mark.parametrize("votes", [1, 3])
def test_mu_of_the_whole_transcript_is_at_most_the_target(votes, neighbours):
    horizon, num_selected = 256, 10
    mu = privacy.gaussian_mu(1.0, DELTA)
    scale = privacy.toeplitz_scale(
        1.0, DELTA, max_selected=num_selected, horizon=horizon, votes=votes, neighbours=neighbours
    )
    ones = num_selected * (1 if neighbours == "zero-out" else 2)
    worst = 0.0
    for start in (*range(0, horizon, 50), horizon - votes):
        changes = np.zeros((horizon, ones))
        changes[start : start + votes] = 1
        worst = max(worst, transcript_mu(horizon, scale, changes))
    assert worst <= mu * (1 + 1e-9)
    assert worst >= mu * (1 - 1e-9)  # the noise is not larger than needed
    rng = np.random.default_rng(0)
    for _ in range(5):  # other places and other votes are no worse
        changes = np.zeros((horizon, ones))
        places = rng.choice(horizon, votes, replace=False)
        changes[places] = rng.integers(0 if neighbours == "zero-out" else -1, 2, (votes, ones))
        assert transcript_mu(horizon, scale, changes) <= mu * (1 + 1e-9)


def test_standard_deviation_of_a_count():
    scale = privacy.toeplitz_scale(1.0, DELTA, max_selected=10, horizon=1000)
    assert scale * privacy.toeplitz_norm(1000) == pytest.approx(38.5, rel=0.03)
    fresh = privacy.gnmax_scale(1.0, DELTA, max_selected=10, horizon=1000)
    assert fresh == pytest.approx(373, rel=0.01)


def test_several_votes_of_a_client():
    one = privacy.toeplitz_norm(1000)
    assert privacy.toeplitz_norm(1000, votes=10) / one == pytest.approx(8.6, abs=0.1)
    assert privacy.toeplitz_norm(1000, votes=10, separation=100) / one == pytest.approx(5.1, abs=0.1)
    weights = privacy.toeplitz_weights(30)
    for votes, separation in ((1, 1), (4, 1), (30, 1), (50, 1), (3, 7), (9, 7)):
        total = np.zeros(30)
        for start in range(0, min(votes * separation, 30), separation):
            total[start:] += weights[: 30 - start]
        expected = math.sqrt((total**2).sum())
        assert privacy.toeplitz_norm(30, votes=votes, separation=separation) == pytest.approx(
            expected, rel=1e-12
        )


def test_gnmax_composes_over_all_releases():
    # One release is exact; a vote that is released 1,000 times is 1,000 Gaussian mechanisms.
    scale = privacy.gnmax_scale(1.0, DELTA, max_selected=10, horizon=1)
    mu = math.sqrt(10) / scale
    assert mu == pytest.approx(privacy.gaussian_mu(1.0, DELTA))
    epsilon = privacy.gnmax_epsilon(scale, DELTA, max_selected=10, horizon=1000)
    assert privacy.gaussian_delta(math.sqrt(1000) * mu, epsilon) == pytest.approx(DELTA, rel=1e-6)
    assert epsilon > 60
    again = privacy.gnmax_scale(4.0, DELTA, max_selected=10, horizon=100, votes=3)
    assert privacy.gnmax_epsilon(again, DELTA, max_selected=10, horizon=100, votes=3) == pytest.approx(4.0)


@pytest.mark.parametrize("epsilon", [0.5, 4.0, 20.0])
def test_epsilon_of_flipped_bits(epsilon):
    flip = privacy.flip_probability(epsilon, max_selected=10)
    assert privacy.flip_epsilon(flip, max_selected=10) == pytest.approx(epsilon, abs=1e-9)
    # The likelihood ratio of one message under two votes that differ in 2K bits.
    assert 20 * math.log((1 - flip) / flip) == pytest.approx(epsilon, abs=1e-9)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: privacy.gaussian_mu(0.0, DELTA), "`epsilon`"),
        (lambda: privacy.gaussian_mu(1.0, 0.0), "`delta`"),
        (lambda: privacy.gaussian_mu(1.0, 0.7), "`delta`"),
        (lambda: privacy.gaussian_epsilon(1000.0, DELTA), "`mu` should be at most what gives epsilon 100"),
        (lambda: privacy.toeplitz_norm(0), "`horizon`"),
        (lambda: privacy.toeplitz_norm(10, votes=0), "`votes`"),
        (lambda: privacy.vote_norm(3, "everything"), "`neighbours` should be 'zero-out' or 'replace-one'"),
        (lambda: privacy.flip_epsilon(0.7, max_selected=3), "`probability`"),
        (lambda: privacy.gnmax_epsilon(-1.0, DELTA, max_selected=3, horizon=5), "`scale`"),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises(ValueError, match=words):
        call()
