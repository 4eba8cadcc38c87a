"""What `make typecheck` checks: the documentation's code at its lines, and all public names."""

import importlib.resources

import pytest

from tests import typecheck
from tests.test_docs import ROOT, python_blocks


def test_code_of_a_page_keeps_its_lines():
    page = ROOT / "README.md"
    lines = typecheck.page_as_module(page).splitlines()
    assert lines[0].startswith("# pyright: strict, ")
    for block in python_blocks(page):
        assert lines[block.line : block.line + len(block.text.splitlines())] == block.text.splitlines()
    assert {line for line in lines[1:] if line} <= set(page.read_text(encoding="utf-8").splitlines())


def test_public_names_are_mentioned():
    names = typecheck.public_names_as_module()
    for name in ("jlibo.GPUCB", "jlibo.Tuner.task", "jlibo.theory.plan", "jlibo.SyntheticEnv.draw"):
        assert f"see({name})\n" in names


def test_package_is_marked_as_typed():
    assert importlib.resources.files("jlibo").joinpath("py.typed").is_file()


@pytest.mark.slow
def test_types_are_right():
    pytest.importorskip("pyright", reason="pyright is not installed")
    assert [one for one in typecheck.problems() if one.place != typecheck.WRONG] == []
