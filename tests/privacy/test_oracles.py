"""The calibration beside dp-accounting and jax-privacy, which need an environment of their own.

`make test-privacy` makes it, and passes its Python in JLIBO_PRIVACY_PYTHON.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from jlibo import privacy

pytestmark = pytest.mark.slow

DELTA, HORIZON = 1e-5, 300
EPSILONS = (0.5, 1.0, 4.0, 8.0)
VOTES = ((1, 1), (3, 1), (10, 1), (4, 20))


@pytest.fixture(scope="module")
def answer():
    python = os.environ.get("JLIBO_PRIVACY_PYTHON")
    if not python or not os.access(python, os.X_OK):
        pytest.skip("JLIBO_PRIVACY_PYTHON should name the Python of these packages: say `make test-privacy`")
    asked = {
        "mus": [privacy.gaussian_mu(epsilon, DELTA) for epsilon in EPSILONS],
        "delta": DELTA,
        "horizon": HORIZON,
        "votes": VOTES,
    }
    script = Path(__file__).with_name("oracles.py")
    done = subprocess.run(
        [python, str(script), json.dumps(asked)],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_mu_has_the_epsilon_of_dp_accounting(answer):
    np.testing.assert_allclose(answer["epsilons"], EPSILONS, rtol=1e-3)


def test_weights_are_those_of_jax_privacy(answer):
    np.testing.assert_allclose(privacy.toeplitz_weights(HORIZON), answer["weights"], rtol=1e-6)


def test_norms_are_those_of_jax_privacy(answer):
    ours = [privacy.toeplitz_norm(HORIZON, votes=votes, separation=apart) ** 2 for votes, apart in VOTES]
    np.testing.assert_allclose(ours, answer["squared_norms"], rtol=1e-5)


def test_errors_of_the_counts_are_those_of_jax_privacy(answer):
    ours = [privacy.toeplitz_norm(releases) ** 2 for releases in range(1, HORIZON + 1)]
    np.testing.assert_allclose(ours, answer["per_query_error"], rtol=1e-5)
