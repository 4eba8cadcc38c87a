"""Compiled programs on disk: reused by later processes, private, rebuilt when damaged, bounded, optional."""

import os
import stat
import threading
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo.programs import executables, folder, identity, programs
from jlibo.programs.programs import Programs
from jlibo.tune.ask import _features_at
from jlibo.tune.space.dictionary import space_features
from tests import forked
from tests.tune.problem import SIZES, SPACE, make_tuner, play, score, teach

KEEP = Programs(keep=True)
posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="owners and permissions of POSIX")


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The folder of programs, which does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(folder.SWITCH, raising=False)
    programs.forget()
    yield tmp_path / "cache" / "jlibo" / "programs"
    finish_writing()
    programs.forget()


@pytest.fixture
def compiled(monkeypatch):
    """The names of the programs that were compiled."""
    names = []
    compile_program = programs.options.compiled

    def counted(lowered, level):
        names.append(level)
        return compile_program(lowered, level)

    monkeypatch.setattr(programs.options, "compiled", counted)
    return names


def finish_writing():
    """Wait until all programs are on disk."""
    if programs._pool is not None:
        programs._pool.shutdown()
        programs._pool = None


def again():
    """Forget what this process holds, as a new process does."""
    finish_writing()
    programs.forget()


@eqx.filter_jit
def ranked(values, *, shift):
    """Sort, and return a structure."""
    return {"order": jnp.argsort(values + shift), "nothing": None, "sum": values.sum()}


def check(how=KEEP):
    answer = how.run(ranked, np.array([3.0, 1.0, 2.0]), shift=1)
    assert np.asarray(answer["order"]).tolist() == [1, 2, 0] and answer["nothing"] is None
    assert float(answer["sum"]) == 6


def files(store):
    finish_writing()
    return sorted(store.iterdir())


def test_program_is_compiled_once_and_loaded_afterwards(store, compiled):
    for _ in range(2):
        check()
    assert len(files(store)) == len(compiled) == 1
    for _ in range(2):  # also stored after its sort has run
        again()
        check()
    assert len(compiled) == 1


def test_function_of_the_package_is_found_without_being_traced(store, compiled, monkeypatch):
    features = space_features(SPACE, **SIZES)
    points = np.full((3, 2), 0.25, np.float32)
    expected = KEEP.run(_features_at, features, points)
    again()
    monkeypatch.setattr(programs._Call, "lowered", None)
    np.testing.assert_array_equal(KEEP.run(_features_at, features, points), expected)
    np.testing.assert_allclose(expected, features(points), rtol=1e-5)
    assert len(compiled) == 1


def test_other_shapes_values_and_settings_are_other_programs(store, compiled):
    KEEP.run(ranked, np.zeros(3), shift=1)
    KEEP.run(ranked, np.zeros(4), shift=1)
    KEEP.run(ranked, np.zeros(3), shift=2)
    KEEP.run(ranked, np.zeros(3, np.float32), shift=1)
    KEEP.quick.run(ranked, np.zeros(3), shift=1)
    with jax.enable_x64(False):
        KEEP.run(ranked, np.zeros(3, np.float32), shift=1)
    # The traced program of the last one is that of another one: both are the same on disk.
    assert len(compiled) >= 5 and len(files(store)) >= 5


def test_changed_function_outside_of_the_package_is_another_program(store):
    def make(factor):
        @eqx.filter_jit
        def scaled(values):
            return factor * values

        return scaled

    for factor in (2.0, 3.0):
        again()
        assert float(KEEP.run(make(factor), np.ones(()))) == factor
    assert len(files(store)) == 2


def test_preparation_needs_shapes_only(store, compiled):
    shapes = KEEP.prepare(ranked, jax.ShapeDtypeStruct((3,), np.dtype(float)), shift=1)
    assert shapes["sum"].shape == () and shapes["order"].shape == (3,)
    check()
    assert len(compiled) == 1


def test_random_keys_are_arguments(store):
    draw = eqx.filter_jit(lambda key: jax.random.uniform(key, (3,)))
    for seed in range(2):
        np.testing.assert_array_equal(KEEP.run(draw, jax.random.key(seed)), draw(jax.random.key(seed)))
    assert len(files(store)) == 1


def test_traced_arguments_are_part_of_the_outer_program(store):
    outer = jax.jit(lambda values: KEEP.run(ranked, values, shift=0)["order"])
    assert outer(np.array([2.0, 1.0])).tolist() == [1, 0]
    assert not store.exists()


def test_failing_function_fails_at_every_call(store):
    @eqx.filter_jit
    def wrong(values):
        raise ValueError("always")

    for _ in range(2):
        with pytest.raises(ValueError, match="always"):
            KEEP.run(wrong, np.ones(2))


# --- off ------------------------------------------------------------------------------------------------


def test_argument_turns_it_off(store):
    check(Programs(keep=False))
    finish_writing()
    assert not store.exists()


@pytest.mark.parametrize("value", ["0", "off", "No", " false "])
def test_environment_variable_turns_it_off(store, monkeypatch, value):
    monkeypatch.setenv(folder.SWITCH, value)
    check()
    finish_writing()
    assert not store.exists()


def test_tuner_and_sampler_have_an_argument(store):
    pytest.importorskip("optuna")
    from jlibo.integrations.optuna import LiBOSampler

    assert make_tuner().model.programs.keep and not make_tuner(cache=False).model.programs.keep
    for cache in (True, False):
        sampler = LiBOSampler(seed=0, cache=cache)
        model, _ = sampler._chooser.knowledge(_study(sampler), SPACE)
        assert model.programs.keep is cache
        if not cache:
            break
        finish_writing()
        assert store.exists()


def _study(sampler):
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(sampler=sampler)


# --- the folder -----------------------------------------------------------------------------------------


@posix
def test_folders_and_files_are_private_under_any_umask(store):
    before = os.umask(0)
    try:
        check()
        finish_writing()
    finally:
        os.umask(before)
    for place in (store, store.parent, store.parent.parent):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert [stat.S_IMODE(file.stat().st_mode) for file in files(store)] == [0o600]


@pytest.mark.parametrize("damage", ["empty", "truncated", "flipped", "text", "renamed", "pickle"])
def test_damaged_file_is_ignored_and_replaced(store, compiled, damage):
    check()
    (file,) = files(store)
    content = file.read_bytes()
    payload = content.partition(b"\n")[2]
    broken = {
        "empty": b"",
        "truncated": content[:-100],
        "flipped": content[:-100] + bytes([content[-100] ^ 1]) + content[-99:],
        "text": b"not a program",
        "renamed": content.replace(file.stem.encode(), b"0" * 64, 1),
        "pickle": executables._first_line(file, b"x" + payload) + b"\nx" + payload,
    }[damage]
    file.write_bytes(broken)
    again()
    check()
    assert len(compiled) == 2
    finish_writing()
    assert executables.read(file) is not None  # pickles differ from run to run
    again()
    check()
    assert len(compiled) == 2


def test_program_that_jax_cannot_load_is_replaced(store, compiled):
    check()
    (file,) = files(store)
    kept = executables.read(file)
    executables.save(file, executables.pickle.dumps((kept.num_arguments, kept.shapes, b"another version")))
    again()
    check()
    assert len(compiled) == 2
    again()
    check()
    assert len(compiled) == 2


@posix
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_programs_that_others_could_have_written_are_not_used(store, compiled, kind):
    check()
    (file,) = files(store)
    if kind == "link":
        file.rename(store.parent / "elsewhere")
        file.symlink_to(store.parent / "elsewhere")
    else:
        (file if kind == "file" else store).chmod(0o777)
    again()
    with pytest.warns(folder.ProgramCacheWarning, match="programs on disk are not used: .* (others|link)"):
        check()
    assert len(compiled) == 2


@posix
@pytest.mark.skipif(getattr(os, "geteuid", lambda: 1)() != 0, reason="only root can give files away")
def test_programs_of_another_user_are_not_used(store, compiled):
    check()
    (file,) = files(store)
    os.chown(file, 65534, -1)
    again()
    with pytest.warns(folder.ProgramCacheWarning, match="belongs to another user"):
        check()
    assert len(compiled) == 2


@pytest.mark.parametrize("problem", ["a file", "no home", "full disk"])
def test_folder_that_cannot_be_used_is_no_error(store, tmp_path, monkeypatch, problem):
    if problem == "a file":
        (tmp_path / "cache").write_text("not a folder")
    elif problem == "no home":
        monkeypatch.setenv("XDG_CACHE_HOME", "relative/paths/do/not/count")
        monkeypatch.setattr(folder.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    else:

        def full(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(executables, "write_atomically", full)
    check()
    finish_writing()
    assert not store.exists() or not list(store.iterdir())


def test_programs_unused_for_longest_are_removed(store, monkeypatch):
    for shift in range(3):
        KEEP.run(ranked, np.zeros(3), shift=shift)
        finish_writing()
    kept = files(store)
    for age, file in enumerate(kept):
        os.utime(file, (time.time() - 1000 * age, time.time() - 1000 * age))
    draft, new_draft = store / ".draft-old", store / ".draft-new"
    for path in (draft, new_draft):
        path.write_bytes(b"")
    os.utime(draft, (0, 0))
    size = sum(file.stat().st_size for file in kept)
    folder.shrink(store, size)
    assert set(files(store)) == {*kept, new_draft}
    folder.shrink(store, size - 1)
    assert set(files(store)) == {*kept[:2], new_draft}
    monkeypatch.setattr(executables, "MOST_BYTES", 10)
    KEEP.run(ranked, np.zeros(3), shift=9)
    assert not [file for file in files(store) if file.suffix == ".bin"]


def test_configuration_of_jax_is_not_changed(store):
    before = dict(jax.config.values)
    check()
    with make_tuner() as tuner:
        teach(tuner, 2)
        tuner.task("new", budget=5).ask()
    assert jax.config.values == before
    assert jax.config.jax_compilation_cache_dir is None


# --- identity -------------------------------------------------------------------------------------------


def test_identity_depends_on_constants_settings_flags_and_versions(monkeypatch):
    def text():
        return "\n".join([programs._complete([]), identity.describe(SPACE)])

    texts = {text()}
    monkeypatch.setattr(jlibo.meta.hierarchy, "NOISE_ROWS", 11.0)
    texts.add(text())
    with jax.enable_x64(False):
        texts.add(text())
    with jax.default_matmul_precision("highest"):
        texts.add(text())
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", "") + " ")
    identity.machine.cache_clear()
    texts.add(text())
    identity.machine.cache_clear()
    monkeypatch.setattr(identity.metadata, "version", lambda name: "0")
    texts.add(text())
    assert len(texts) == 6


def test_objects_of_other_packages_have_no_description():
    class Mine(jlibo.AbstractPolicy):
        noise_std: jax.Array = eqx.field(converter=jnp.asarray)

        def scores(self, belief, *, key):
            return belief.mean

    for value in (Mine(0.1), object(), lambda x: x, [Mine(0.1)], jlibo.FunctionFeatures):
        with pytest.raises(identity.Unknown):
            identity.describe(value)
    texts = {identity.describe(value) for value in (1, 1.0, True, "1", None, (1,), [1], {1: 1}, np.zeros(1))}
    assert len(texts) == 9
    assert identity.describe(jnp.zeros(2)) == identity.describe(np.zeros(2))


# --- processes ------------------------------------------------------------------------------------------

FIRST_ASK = """
import sys, jlibo
from jlibo.programs import programs
from tests.tune.problem import make_tuner, teach
names, compile_program = [], programs.options.compiled
programs.options.compiled = lambda *args: names.append(args[1]) or compile_program(*args)
with make_tuner() as tuner:
    teach(tuner)
    print(len(names), tuner.task("new", budget=5).ask().params, len(names))
"""


def first_ask(store):
    environment = os.environ | {"XDG_CACHE_HOME": str(store.parents[1]), folder.SWITCH: "1"}
    done = forked.run(["-c", FIRST_ASK], env=environment, capture_output=True, text=True, check=True)
    *params, count = done.stdout.split()[1:]
    return params, int(count)


def test_another_process_does_not_compile_again(store):
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(first_ask(store))) for _ in range(2)]
    for thread in threads:  # two processes at once, neither of which may spoil the other's files
        thread.start()
    for thread in threads:
        thread.join()
    (params, count), (same, _) = answers
    assert count > 0 and params == same
    assert first_ask(store) == (params, 0)


# --- a task ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [None, 100])
def test_task_of_100_trials_compiles_at_the_first_only(store, compiled, caplog, budget):
    with make_tuner() as tuner:
        teach(tuner)
        task = tuner.task("long", budget=budget)
        play(task, 2)
        assert 0 < len(compiled) <= 5
        before = len(compiled)
        with jax.log_compiles(), caplog.at_level("WARNING"):
            for trial in task.ask(3):
                task.tell(trial, score(trial.params))
            play(task, 95)
        assert len(task.trials) == 100 and len(compiled) == before
        assert not [one for one in caplog.messages if "Compiling" in one]
