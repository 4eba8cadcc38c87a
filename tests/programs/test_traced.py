"""Programs stored on disk: reused, rebuilt when broken, never confused, not used if others can write them."""

import os
import stat
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from jlibo.programs import folder as places
from jlibo.programs import identity, options
from jlibo.programs import traced as compiled
from jlibo.sweeps import engines


@pytest.fixture
def cache(tmp_path):
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield tmp_path / "traced"
    jax.config.update("jax_compilation_cache_dir", before)


def double(description, calls):
    def make():
        calls.append(description)
        args = (np.zeros(3), [np.ones(3)])
        return lambda x, rest: {"twice": 2 * x, "sum": x + rest[0]}, args, {"about": [description, 3]}

    call, about = compiled.stored(description, make)
    assert about == {"about": [description, 3]}
    return call


def check(call):
    answer = jax.jit(call)(np.arange(3.0), [np.ones(3)])
    np.testing.assert_allclose(answer["twice"], [0, 2, 4])
    np.testing.assert_allclose(answer["sum"], [1, 2, 3])


def test_without_a_folder_nothing_is_stored(tmp_path):
    assert not jax.config.jax_compilation_cache_dir
    calls = []
    for _ in range(2):
        check(double("a", calls))
    assert calls == ["a", "a"]


def test_without_flatbuffers_nothing_is_stored(cache, monkeypatch):
    calls = []
    monkeypatch.setattr(compiled.importlib.util, "find_spec", lambda name: None)
    for _ in range(2):
        check(double("a", calls))
    assert calls == ["a", "a"] and not cache.exists()


def test_program_is_traced_once_and_rebuilt_when_broken(cache):
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


def test_unwritable_folder_is_ignored(cache):
    pytest.importorskip("flatbuffers")
    cache.write_text("a file where the folder should be")
    check(double("a", []))


# --- trust ---

posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="owners of POSIX")
as_root = pytest.mark.skipif(getattr(os, "geteuid", lambda: 1)() != 0, reason="only root can give files away")


def planted(cache) -> None:
    """Replace the stored program by a valid one with other results, as an attacker would."""
    program = export.export(jax.jit(lambda x, rest: {"twice": 0 * x, "sum": 0 * rest[0]}))
    payload = b'{"about": ["a", 3]}\n' + bytes(program(np.zeros(3), [np.ones(3)]).serialize())
    (path,) = cache.iterdir()
    mode = stat.S_IMODE(path.stat().st_mode)
    path.unlink()
    path.write_bytes(f"{compiled._first_line(path, payload)}\n".encode() + payload)
    path.chmod(mode)


@posix
def test_stored_programs_are_private_under_any_umask(cache):
    pytest.importorskip("flatbuffers")
    before = os.umask(0)
    try:
        check(double("a", []))
    finally:
        os.umask(before)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in cache.iterdir()] == [0o600]


@posix
@pytest.mark.parametrize("kind", ["writable folder", "writable root", "writable file", "link"])
def test_programs_that_others_could_have_written_are_not_used(cache, kind):
    pytest.importorskip("flatbuffers")
    check(double("a", []))
    planted(cache)
    assert float(double("a", [])(np.ones(3), [np.ones(3)])["twice"].sum()) == 0  # the planted one works
    (path,) = cache.iterdir()
    if kind == "link":
        path.rename(cache.parent / "elsewhere")
        path.symlink_to(cache.parent / "elsewhere")
    else:
        {"writable folder": cache, "writable root": cache.parent, "writable file": path}[kind].chmod(0o777)
    with pytest.warns(places.ProgramCacheWarning, match="programs on disk are not used: .* (others|link)"):
        check(double("a", []))


@as_root
@pytest.mark.parametrize("place", ["file", "folder", "root"])
def test_programs_of_another_user_are_not_used(cache, place):
    pytest.importorskip("flatbuffers")
    check(double("a", []))
    planted(cache)
    (path,) = cache.iterdir()
    os.chown({"file": path, "folder": cache, "root": cache.parent}[place], 65534, -1)
    with pytest.warns(places.ProgramCacheWarning, match="belongs to another user"):
        check(double("a", []))


def test_program_under_the_name_of_another_is_not_used(cache):
    pytest.importorskip("flatbuffers")
    check(double("a", []))
    (path,) = cache.iterdir()
    content = path.read_bytes()
    path.unlink()
    calls = []
    check(double("b", calls))
    (other,) = cache.iterdir()
    other.write_bytes(content)
    check(double("b", calls))
    assert calls == ["b", "b"]


@pytest.fixture
def user_cache(tmp_path, monkeypatch):
    before = {name: getattr(jax.config, name) for name in JAX_CACHE}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(places.SWITCH, raising=False)
    yield tmp_path / "cache" / "jlibo" / "compiled"
    for name, value in before.items():
        jax.config.update(name, value)


JAX_CACHE = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


@posix
def test_cache_folder_is_private(user_cache):
    before = os.umask(0)
    try:
        assert compiled.keep_programs() == user_cache
        (user_cache / "entry").write_bytes(b"as jax writes it")
    finally:
        os.umask(before)
    assert jax.config.jax_compilation_cache_dir == str(user_cache)
    for folder in (user_cache, user_cache.parent, user_cache.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    compiled._close_files(user_cache)
    assert stat.S_IMODE((user_cache / "entry").stat().st_mode) == 0o600
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled.keep_programs() == user_cache


@posix
@pytest.mark.parametrize("place", ["", "..", "traced"])
def test_cache_folder_writable_by_others_is_not_used(user_cache, place):
    compiled.keep_programs()
    (user_cache / "traced").mkdir(exist_ok=True)
    (user_cache / place).chmod(0o777)
    with pytest.warns(places.ProgramCacheWarning, match="can be written by others"):
        assert compiled.keep_programs() is None
    assert jax.config.jax_compilation_cache_dir is None


@posix
def test_jax_cache_entries_that_others_could_have_written_are_not_used(user_cache, tmp_path):
    compiled.keep_programs()
    entry = user_cache / "entry-cache"
    entry.write_bytes(b"compiled")
    entry.chmod(0o666)
    with pytest.warns(places.ProgramCacheWarning, match="can be written by others .* was removed"):
        assert compiled.keep_programs() == user_cache
    assert not entry.exists()
    (tmp_path / "elsewhere").write_bytes(b"compiled")
    entry.symlink_to(tmp_path / "elsewhere")
    with pytest.warns(places.ProgramCacheWarning, match="is a symbolic link"):
        assert compiled.keep_programs() is None
    entry.unlink()
    if os.geteuid() == 0:
        entry.write_bytes(b"compiled")
        os.chown(entry, 65534, -1)
        with pytest.warns(places.ProgramCacheWarning, match="belongs to another user"):
            assert compiled.keep_programs() is None
        assert entry.exists()


def test_without_a_home_directory_nothing_is_stored(user_cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/paths/do/not/count")
    monkeypatch.setattr(places.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.warns(places.ProgramCacheWarning, match="no home"):
        assert compiled.keep_programs() is None


def test_file_name_depends_on_settings_and_versions(cache, monkeypatch):
    monkeypatch.setattr(compiled.importlib.util, "find_spec", lambda name: True)
    names = {compiled._path("a"), compiled._path("b")}
    with jax.enable_x64(False):
        names.add(compiled._path("a"))
    with jax.default_matmul_precision("highest"):
        names.add(compiled._path("a"))
    monkeypatch.setattr(identity.metadata, "version", lambda name: "0")
    names.add(compiled._path("a"))
    assert len(names) == 5 and None not in names


def test_program_that_cannot_be_exported_still_runs(cache, monkeypatch):
    monkeypatch.setattr(compiled.importlib.util, "find_spec", lambda name: True)

    def refuse(*_, **__):
        raise ValueError("no lasting form")

    monkeypatch.setattr(export, "export", refuse)
    check(double("a", []))


def in_threads(fn, items, num_threads):
    stop = threading.Event()
    try:
        return list(engines._in_threads(fn, items, num_threads, stop))
    finally:
        assert stop.is_set()


def test_threads_use_the_x64_setting_of_their_caller():
    with jax.enable_x64(False):
        kinds = in_threads(lambda item: jnp.asarray(1.5).dtype.name, [0, 1, 2], 2)
    assert kinds == ["float32"] * 3
    assert in_threads(lambda item: jnp.asarray(1.5).dtype.name, [0, 1], 2) == ["float64"] * 2


def test_error_in_a_thread_is_raised_in_the_caller():
    def fail(item):
        raise RuntimeError(f"item {item}")

    with pytest.raises(RuntimeError, match=r"item [01]"):
        in_threads(fail, [0, 1], 2)


class Lowered:
    """A lowered program that records the options with which it is compiled, and refuses unknown ones."""

    def __init__(self, known: bool = True):
        self.known, self.seen = known, []

    def compile(self, compiler_options=None):
        self.seen.append(compiler_options)
        if compiler_options and not self.known:
            raise RuntimeError("No such compile option")
        return "program"


def test_level_of_optimisation_in_the_environment_is_kept(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    lowered = Lowered()
    for level in range(len(options.LEVELS)):
        assert options.compiled(lowered, level) == "program"
    assert options.compiled(lowered, 2, "gpu") == "program"
    assert lowered.seen == [*options.LEVELS, None]
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false --xla_backend_optimization_level=0")
    assert options.compiled(lowered, 2) == "program"
    assert lowered.seen[-1] is None


def test_compiler_that_does_not_know_an_option_uses_its_defaults(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    lowered = Lowered(known=False)
    assert options.compiled(lowered, 2) == "program"
    assert lowered.seen == [options.LEVELS[2], None]


@pytest.mark.parametrize("level", range(len(options.LEVELS)))
def test_this_compiler_knows_the_options(monkeypatch, level):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    lowered = jax.jit(lambda x: (x @ x).sum()).lower(jnp.ones((3, 3), jnp.float32))
    assert float(lowered.compile(compiler_options=options.LEVELS[level])(jnp.ones((3, 3), jnp.float32))) == 27
