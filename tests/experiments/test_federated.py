"""The experiments on federated runs: utility of private votes, attacks, and their figures."""

import numpy as np
import pytest

from jlibo.experiments import federated_numbers, find, run_experiment, summarise
from jlibo.experiments.federated_numbers import MOST_SELECTED, elected, jaccard

NUM_KERNELS, NUM_TRUE, NUM_STREAMS = 50, 5, 300
ALPHA = 0.25


def stream(num_clients, rng):
    """Return votes with the rates that were measured on lifelong-cosine, and the true support.

    True kernels get 22 to 68 % of the votes, false ones 11 % in the mean; a vote has at most 10 kernels.
    """
    truth = np.arange(NUM_KERNELS) < NUM_TRUE
    rates = np.where(truth, rng.uniform(0.22, 0.68, NUM_KERNELS), rng.beta(8, 65, NUM_KERNELS))
    votes = rng.random((num_clients, NUM_KERNELS)) < rates
    strength = np.where(votes, rng.random(votes.shape), -1)
    votes &= strength.argsort(1).argsort(1) >= NUM_KERNELS - MOST_SELECTED
    return votes, truth


def mean_jaccard(num_clients, **options):
    rng = np.random.default_rng(0)
    found = []
    for _ in range(NUM_STREAMS):
        votes, truth = stream(num_clients, rng)
        found.append(jaccard(elected(votes, ALPHA, rng=rng, **options), truth))
    return np.mean(found)


def test_private_votes_find_the_true_kernels_with_enough_clients():
    assert mean_jaccard(1000) == pytest.approx(0.92, abs=0.02)
    assert mean_jaccard(300) == pytest.approx(0.90, abs=0.02)
    assert mean_jaccard(1000, mechanism="toeplitz", epsilon=1.0) >= 0.83
    assert mean_jaccard(300, mechanism="toeplitz", epsilon=4.0) >= 0.82


def test_privacy_has_no_utility_at_the_sizes_of_the_paper():
    exact = mean_jaccard(49)
    for mechanism in ("toeplitz", "gnmax", "local"):
        for epsilon in (1.0, 4.0):
            assert mean_jaccard(49, mechanism=mechanism, epsilon=epsilon) < 0.5 * exact
    # Noise that is drawn anew, and noise of the clients, need far more clients than correlated noise.
    for mechanism in ("gnmax", "local"):
        assert mean_jaccard(1000, mechanism=mechanism, epsilon=1.0) < 0.3


def test_few_colluding_voters_elect_nothing():
    rng = np.random.default_rng(1)
    for share, most in ((0.0, 0.3), (0.05, 0.3)):
        false, lost = [], []
        for _ in range(NUM_STREAMS):
            votes, truth = stream(1000, rng)
            honest = elected(votes, 0.3, rng=rng)
            popular = np.argsort(-np.where(truth, -1, votes.sum(0)))[:MOST_SELECTED]
            votes[: round(share * 1000)] = np.isin(np.arange(NUM_KERNELS), popular)
            support = elected(votes, 0.3, rng=rng)
            false.append((support & ~truth).sum())
            lost.append((honest & truth & ~support).sum())
        assert np.mean(false) <= most
        assert np.mean(lost) <= 0.2  # 5 % fewer honest votes cost kernels that are near alpha


@pytest.fixture(scope="module")
def small_numbers():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(federated_numbers, "CLIENTS", (20, 60))
        patch.setattr(federated_numbers, "ATTACKED_CLIENTS", 60)
        patch.setattr(federated_numbers, "NUM_DRAWS", 2)
        sizes = {"num_features": 8, "num_tasks": 3, "horizon": 9, "support_size": 2}
        yield {
            name: summarise(run_experiment(find(f"federated-{name}").changed(sizes), num_seeds=2))
            for name in ("private", "attack")
        }


def test_private_experiment_reports_every_case(small_numbers):
    summary = small_numbers["private"]
    assert list(summary["agents"]) == ["oracle", "full", "exact", "toeplitz", "gnmax", "local"]
    numbers = summary["analysis"]
    assert numbers["clients"] == [20, 60]
    assert len(numbers["cases"]) == 1 + 3 * len(federated_numbers.EPSILONS)
    assert 0 < numbers["votes_for_false"] < numbers["votes_for_true"] < 1
    exact = numbers["cases"][0]
    assert exact["mechanism"] == "none" and exact["epsilon"] is None
    for case in numbers["cases"]:
        for one in (*case["jaccard"], *case["regret"]):
            assert np.isfinite([one["mean"], one["se"]]).all()
    private = [case["jaccard"][-1]["mean"] for case in numbers["cases"][1:]]
    assert np.mean(private) <= exact["jaccard"][-1]["mean"]
    assert numbers["regret_oracle"]["mean"] <= numbers["regret_full"]["mean"]


def test_attack_experiment_reports_every_case(small_numbers):
    numbers = small_numbers["attack"]["analysis"]
    false, true = (
        np.asarray([[one["mean"] for one in row] for row in numbers[name]]) for name in ("false", "true")
    )
    assert false.shape == true.shape == (len(numbers["alphas"]), len(numbers["colluding"]))
    assert (np.diff(false, axis=1) >= 0).all()  # more colluding voters elect no fewer
    assert (np.diff(false, axis=0) <= 0).all() and (np.diff(true, axis=0) <= 0).all()  # nor a lower alpha


@pytest.mark.parametrize("name", ["private", "attack"])
def test_figures_show_the_numbers(small_numbers, name):
    experiment = find(f"federated-{name}")
    assert experiment.analysis is not None
    numbers = small_numbers[name]["analysis"]
    figure = experiment.analysis.draw(numbers, "title")
    lines = [line for ax in figure.axes for line in ax.get_lines()]
    first = numbers["cases"][0]["jaccard"] if name == "private" else numbers["false"][0]
    shown = [list(map(float, line.get_ydata())) for line in lines]
    assert [one["mean"] for one in first] in shown
