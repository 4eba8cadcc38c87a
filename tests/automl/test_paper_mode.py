"""The ablation of the paper's mode: agents, kernels and the printed table."""

import sys

import numpy as np
import pytest

from benchmarks.automl import paper_mode
from tests.automl.toys import mixed_arrays, write_table


@pytest.mark.slow
def test_table_has_every_agent_and_the_size_of_its_kernel(tmp_path, monkeypatch, capsys):
    path = tmp_path / "mixed.npz"
    write_table(path, *mixed_arrays(num_tasks=4))
    words = ["--table", str(path), "--orders", "2", "--budget", "10", "--skip-tasks", "0"]
    monkeypatch.setattr(sys, "argv", ["paper_mode", *words])
    paper_mode.main()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    rows = {cells[1].strip(): cells[2:-1] for cells in (line.split("|") for line in lines[1:])}
    assert list(rows) == ["random", "full", "full, explores", "exploration data", "all data", "guarded"]
    whole = int(rows["full"][-2])
    for name, cells in rows.items():
        regrets = np.array([float(cell.split("±")[0]) for cell in cells[:-2]])
        assert (np.diff(regrets) <= 0).all() and (regrets >= 0).all()
        if name != "random":
            assert 0 < int(cells[-2]) <= whole
    assert int(rows["full, explores"][-2]) == whole
    # A kernel that is selected from three rows a task is small.
    assert int(rows["exploration data"][-2]) < whole
