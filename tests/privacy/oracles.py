"""Numbers of dp-accounting and jax-privacy, as JSON; runs in an environment of their own."""

import json
import sys

import dp_accounting
from dp_accounting.pld import PLDAccountant
from jax_privacy.matrix_factorization import toeplitz


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return epsilon of one Gaussian mechanism with noise 1 / mu, by dp-accounting."""
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    return accountant.compose(dp_accounting.GaussianDpEvent(1 / mu)).get_epsilon(delta)


def main() -> None:
    """Answer the questions on the command line: a list of mus, a delta, a horizon."""
    asked = json.loads(sys.argv[1])
    horizon = asked["horizon"]
    weights = toeplitz.optimal_max_error_strategy_coefs(horizon)
    errors = toeplitz.per_query_error(strategy_coef=weights, n=horizon)
    answer = {
        "epsilons": [gaussian_epsilon(mu, asked["delta"]) for mu in asked["mus"]],
        "weights": [float(weight) for weight in weights],
        "squared_norms": [
            float(
                toeplitz.minsep_sensitivity_squared(weights, separation, max_participations=votes, n=horizon)
            )
            for votes, separation in asked["votes"]
        ],
        "per_query_error": [float(error) for error in errors],
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
