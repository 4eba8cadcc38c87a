"""Programs kept on disk: found again, made again when broken, and never mistaken for another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from jlibo.experiments import compiled, runner


@pytest.fixture
def cache(tmp_path):
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield tmp_path / "traced"
    jax.config.update("jax_compilation_cache_dir", before)


def double(description, calls):
    def make():
        calls.append(description)
        return lambda x, rest: {"twice": 2 * x, "sum": x + rest[0]}, (np.zeros(3), [np.ones(3)])

    return compiled.build(description, make)


def check(program):
    answer = program.call(np.arange(3.0), [np.ones(3)])
    np.testing.assert_allclose(answer["twice"], [0, 2, 4])
    np.testing.assert_allclose(answer["sum"], [1, 2, 3])
    assert [leaf.shape for leaf in jax.tree.leaves(program.shapes)] == [(3,), (3,)]


def test_without_a_folder_nothing_is_kept(tmp_path):
    assert not jax.config.jax_compilation_cache_dir
    calls = []
    for _ in range(2):
        check(double("a", calls))
    assert calls == ["a", "a"]


def test_without_flatbuffers_nothing_is_kept_and_all_works(cache, monkeypatch):
    calls = []
    monkeypatch.setattr(compiled.importlib.util, "find_spec", lambda name: None)
    for _ in range(2):
        check(double("a", calls))
    assert calls == ["a", "a"] and not cache.exists()


def test_a_program_is_traced_once_and_made_again_when_broken(cache):
    pytest.importorskip("flatbuffers")
    calls = []
    for _ in range(2):
        check(double("a", calls))
    assert calls == ["a"]
    check(double("b", calls))
    assert calls == ["a", "b"] and len(list(cache.iterdir())) == 2
    for file in cache.iterdir():
        file.write_bytes(b"not a program")
    check(double("a", calls))
    assert calls == ["a", "b", "a"]


def test_a_folder_that_cannot_be_written_is_no_obstacle(cache):
    pytest.importorskip("flatbuffers")
    cache.write_text("a file where the folder should be")
    check(double("a", []))


def test_the_name_depends_on_settings_and_sources(cache, monkeypatch):
    monkeypatch.setattr(compiled.importlib.util, "find_spec", lambda name: True)
    names = {compiled._path("a"), compiled._path("b")}
    with jax.enable_x64(False):
        names.add(compiled._path("a"))
    with jax.default_matmul_precision("highest"):
        names.add(compiled._path("a"))
    monkeypatch.setattr(compiled.metadata, "version", lambda name: "0")
    names.add(compiled._path("a"))
    assert len(names) == 5 and None not in names


def test_what_cannot_be_exported_still_runs(cache, monkeypatch):
    monkeypatch.setattr(compiled.importlib.util, "find_spec", lambda name: True)

    def refuse(*_, **__):
        raise ValueError("no lasting form")

    monkeypatch.setattr(export, "export", refuse)
    check(double("a", []))


def test_threads_keep_the_precision_of_their_caller():
    with jax.enable_x64(False):
        kinds = runner._in_threads(lambda item: jnp.asarray(1.5).dtype.name, [0, 1, 2], 2)
    assert kinds == ["float32"] * 3
    assert runner._in_threads(lambda item: jnp.asarray(1.5).dtype.name, [0, 1], 2) == ["float64"] * 2


def test_an_error_in_a_thread_reaches_the_caller():
    def fail(item):
        raise RuntimeError(f"item {item}")

    with pytest.raises(RuntimeError, match="item 0"):
        runner._in_threads(fail, [0, 1], 2)
