"""Problems that several tests of the AutoML benchmark use."""

import pytest

from benchmarks.automl import tables
from benchmarks.automl.problem import Problem, thin
from tests.automl.toys import mixed_arrays, write_table


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> Problem:
    path = tmp_path_factory.mktemp("tables") / "mixed.npz"
    write_table(path, *mixed_arrays())
    return tables.read_npz(path)


@pytest.fixture(scope="module")
def small() -> Problem:
    """The project's table with 4 tasks and 60 configurations."""
    return thin(tables.read_shipped(), num_tasks=4, num_configs=60)
