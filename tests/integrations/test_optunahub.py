"""The package for OptunaHub: its registry's layout and checks, and the package as OptunaHub loads it."""

import inspect
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import optuna
import optunahub
import pytest
import yaml

from jlibo.integrations.optuna import LiBOSampler

ROOT = Path(__file__).parents[2]
REGISTRY = ROOT / "optunahub-registry" / "package"
FOLDER = REGISTRY / "samplers" / "libo"
README = (FOLDER / "README.md").read_text(encoding="utf-8")


def load():
    return optunahub.load_local_module(package="samplers/libo", registry_root=str(REGISTRY))


def test_package_is_the_sampler():
    module = load()
    assert module.__name__ == "optunahub_registry.package.samplers.libo"
    assert module.__all__ == ["LiBOSampler"] and module.LiBOSampler is LiBOSampler
    sampler = module.LiBOSampler(seed=0, sizes={"num_basis": 1, "interactions": False})
    study = optuna.create_study(sampler=sampler)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    assert len(study.trials) == 3


def test_readme_passes_the_checks_of_the_registry():
    _, header, text = README.split("---\n", 2)
    fields = yaml.safe_load(header)
    assert set(fields) == {"author", "title", "description", "tags", "optuna_versions", "license"}
    assert all(isinstance(fields[name], str) for name in ("author", "title", "description"))
    assert all(isinstance(one, str) for name in ("tags", "optuna_versions") for one in fields[name])
    assert fields["tags"][0] == "sampler" and fields["license"] == "MIT License"
    assert optuna.__version__.split(".")[0] in {one.split(".")[0] for one in fields["optuna_versions"]}
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings == ["Abstract", "APIs", "Installation", "Example", "Others"]
    assert "<" not in re.sub(r"```.*?```", "", text, flags=re.DOTALL)  # no HTML
    assert (FOLDER / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert (FOLDER / "requirements.txt").read_text() == "jlibo[optuna]\n"


def test_readme_lists_the_arguments():
    (call,) = re.findall(r"^- `LiBOSampler\((.*)\)`$", README, re.MULTILINE)
    parameters = inspect.signature(LiBOSampler).parameters.values()
    stars = [f"{one.name}={one.default!r}".replace("'", '"') for one in parameters]
    assert call == ", ".join([stars[0], "*", *stars[1:]])
    assert re.findall(r"^  - `(\w+)`: ", README, re.MULTILINE) == [one.name for one in parameters]


@pytest.mark.slow
@pytest.mark.parametrize("block", [True, False], ids=["README", "example.py"])
def test_examples_run(block, tmp_path, monkeypatch, capsys):
    """`load_module` downloads from the registry; here it loads the package in this folder."""
    monkeypatch.setattr(optunahub, "load_module", lambda package: load())
    monkeypatch.chdir(tmp_path)
    if block:
        (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
        exec(code, {})
        assert Path("studies.db").exists()
    else:
        runpy.run_path(str(FOLDER / "example.py"), run_name="__main__")
        assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
            "first",
            "second",
            "third",
        ]


@pytest.mark.slow
def test_tests_of_the_package():
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        str(FOLDER / "tests"),
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    assert subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0
