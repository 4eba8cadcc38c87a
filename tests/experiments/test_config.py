"""Untrusted configs: every mistake in the file gives a one-line error before any computation."""

import random
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import jlibo
from jlibo import cli
from jlibo.experiments.config import MAX_CONFIG, ConfigError, read_config
from jlibo.sweeps import BudgetError, points

BASE = 'experiment = "lifelong-cosine"\n'
NASTY = {
    "dotted key": (BASE + "a." * 300_000 + "a = 1", "a key of more than 20 parts"),
    "dotted table": (BASE + "[" + "a." * 300_000 + "a]", "a key of more than 20 parts"),
    "quoted key": (BASE + '"a b". ' * 50_000 + "a = 1", "a key of more than 20 parts"),
    "inline table": (BASE + "x = {" + "a." * 30_000 + "a = 1}", "a key of more than 20 parts"),
    "deep list": (BASE + "x = " + "[" * 100_000, "nested too deeply"),
    "deep table": (BASE + "x = " + "{a = " * 50_000, "nested too deeply"),
    "digits": (BASE + "seeds = " + "9" * 5000, "4300 digits"),
    "hexadecimal seeds": (BASE + "seeds = 0x" + "f" * 5000, "but got a whole number of 20000 bits"),
    "hexadecimal set": (BASE + "[set]\nlam = 0x" + "f" * 5000, "'set.lam' should be a number"),
    "hexadecimal grid": (BASE + "[grid]\nlam = [0x" + "f" * 5000 + "]", "'grid.lam' should be numbers"),
    "digits set": (BASE + "[set]\nlam = " + "9" * 400, "'set.lam' should be a number"),
    "memory huge": (BASE + "memory_gb = 1e300", "'memory_gb' should be a number above 0, at most"),
    "memory nan": (BASE + "memory_gb = nan", "but got nan"),
    "memory inf": (BASE + "memory_gb = inf", "but got inf"),
    "memory 0": (BASE + "memory_gb = 0", "but got 0"),
    "memory below": (BASE + "memory_gb = -1.5", "but got -1.5"),
    "memory text": (BASE + 'memory_gb = "2"', "but got '2'"),
    "memory bits": (BASE + "memory_gb = 0x" + "f" * 5000, "a whole number of 20000 bits"),
    "lam infinite": (BASE + "[set]\nlam = 1e39", "'lam' should be at most 3.40282e+38"),
    "lam in grid": (BASE + "[grid]\nlam = [0.1, 1e39]", "'grid': 'lam' should be at most 3.40282e+38"),
    "lam vanishes": (BASE + "[[points]]\nlam = 1e-50", "'points': 'lam' should be 0 or at least"),
    "seeds huge": (
        BASE + "seeds = 99999999999999",
        "'seeds' should be a whole number below 2**31, but got 999",
    ),
    "seeds many": (BASE + "seeds = 2000000000", "'seeds' x points should be fewer: 2,000,000,000 x 1 runs"),
    "first seed": (BASE + "first_seed = 99999999999999", "'first_seed' should be a whole number below 2**31"),
    "chunk": (BASE + "chunk = 2147483648", "'chunk' should be a whole number below 2**31"),
    "features": (BASE + "[set]\nnum_features = 1000000", "num_features=1000000"),
    "tasks": (BASE + "[set]\nnum_tasks = 1000000000", "num_tasks=1000000000"),
    "steps": (BASE + "[set]\nhorizon = 2000000000", "horizon=2000000000"),
    "grid": (
        BASE
        + "[grid]\n"
        + "\n".join(
            f"{name} = [{', '.join(str(i / 3001) for i in range(1, 3000))}]"
            for name in ("lam", "omega", "nu", "alpha")
        ),
        "points should be fewer: 20 x 80,8",
    ),
    "large": (BASE + "#" + "x" * MAX_CONFIG, "larger than 1.0 MiB"),
    "key escapes": (BASE + '"\\u001b[31m\\n" = 1', "there is no key '\\x1b[31m\\n'"),
    "name escapes": ('experiment = "\\u001b[31m\\r"', "'\\x1b[31m\\r'"),
    "grid escapes": (BASE + '[grid]\n"\\u001b]0;x\\u0007" = [1]', "'grid.\\x1b]0;x\\x07' is no setting"),
    "value escapes": (BASE + '[set]\nlam = "\\u001b[2J"', "'\\x1b[2J'"),
    "direction": (BASE + '"\\u202e" = 1', "'\\u202e'"),
    "long key": (BASE + "k" * 200_000 + " = 1", "there is no key 'kkk"),
    "outputs": (BASE + 'outputs = [["a"], {b = 1}]', "but got ['a']"),
    "outputs deep": (BASE + "outputs = [" + "[" * 90 + "]" * 90 + "]", "but got [[[...]]]"),
    "points": (BASE + "points = [{lam = nan}]", "'points': 'lam'"),
    "date": (BASE + "[set]\nlam = 1979-05-27", "'lam' should be a number"),
    "no text": (b"\xff\xfe\x00", "not text in UTF-8"),
    "null": (BASE + "x = \0", "is not TOML"),
    "nothing": ("", "'experiment' should be a name"),
}


@pytest.mark.parametrize("kind", NASTY)
def test_invalid_config_gives_one_line_and_exit_code_2(kind, tmp_path, capsys):
    content, message = NASTY[kind]
    path = tmp_path / "config.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert cli.main(["sweep", str(path), "--no-cache", "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("jlibo: ") and captured.err.count("\n") == 1 and captured.out == ""
    assert message in captured.err and str(path) in captured.err
    assert captured.err[:-1].isprintable() and len(captured.err) < 1100
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["folder", "missing", "endless"])
def test_config_that_is_not_a_file_is_refused(kind, tmp_path):
    path = {"folder": tmp_path, "missing": tmp_path / "no.toml", "endless": Path("/dev/zero")}[kind]
    with pytest.raises(ConfigError, match=f"'{path}'") as caught:
        read_config(path)
    assert "\n" not in str(caught.value)


def test_time_to_check_a_grid_grows_with_its_axes(tmp_path):
    """The time depends on the axes, not on the 3 million points."""

    def seconds(size: int) -> float:
        values = ", ".join(str(0.001 * i) for i in range(1, size + 1))
        text = "seeds = 1\n[grid]\n" + "\n".join(f"{name} = [{values}]" for name in ("lam", "omega", "nu"))
        (tmp_path / "config.toml").write_text(BASE + text)
        begin = time.perf_counter()
        config = read_config(tmp_path / "config.toml", memory=2**40)
        assert isinstance(config.grid, dict) and len(config.grid["nu"]) == size
        return time.perf_counter() - begin

    seconds(10)
    assert seconds(144) < 200 * seconds(10)  # with all points, about 3,000 times as long


def test_settings_that_constrain_each_other_are_checked_jointly(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(BASE + "[grid]\nnorm_bound = [2.0, 10.0]\nbeta_min = [0.5, 3.0]")
    with pytest.raises(ConfigError, match="'grid': 'beta_min' should be below norm_bound"):
        read_config(path)
    path.write_text(BASE + "[grid]\nnorm_bound = [9.0, 10.0]\nbeta_min = [0.5, 3.0]\nlam = [0.1]")
    assert read_config(path).grid["beta_min"] == [0.5, 3.0]  # pyright: ignore[reportArgumentType]


# --- the same for arguments of `jlibo.sweep` ---


def run(lam, *, key):
    return lam * 2


@pytest.mark.parametrize(
    ("grid", "x64", "message"),
    [
        (
            {"lam": [0.5, 1e39]},
            False,
            r"`grid` should be numbers that float32 can hold for lam, but got 1e\+39",
        ),
        ({"lam": [0.5, 1e-50]}, False, "float32 can hold for lam, but got 1e-50"),
        ({"lam": [1, 2**40]}, False, "int32 can hold for lam, but got 1099511627776"),
        ([{"lam": -1e300}], False, "float32 can hold for lam"),
        ({"lam": [1e-310]}, True, "float64 can hold for lam, but got 1e-310"),
    ],
)
def test_numbers_out_of_range_of_the_dtype_are_refused(grid, x64, message):
    with jax.enable_x64(x64), pytest.raises(ValueError, match=message):
        jlibo.sweep(run, grid, key=jax.random.key(0))


def test_numbers_in_range_of_the_dtype_are_accepted():
    with jax.enable_x64(False):
        values = [0.0, -0.0, 1e38, 1.2e-38, 1 / 3, -1e-30]
        result = jlibo.sweep(run, {"lam": values}, key=jax.random.key(0))
        np.testing.assert_allclose(result["value"][:, 0], 2 * np.asarray(values), rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_seeds": 99999999999999}, "`num_seeds` should be a whole number below 2"),
        ({"first_seed": 99999999999999}, "`first_seed` should be a whole number below 2"),
        ({"num_seeds": 2, "first_seed": 2**31 - 1}, "`first_seed` should be such that all seeds are below 2"),
    ],
)
def test_error_names_the_argument_that_is_too_large(options, message):
    with pytest.raises(ValueError, match=message):
        jlibo.sweep(run, {"lam": [1.0]}, key=jax.random.key(0), **options)


def test_grid_that_exceeds_memory_is_refused(monkeypatch):
    monkeypatch.setattr(points, "free_host_memory", lambda: 2**30)
    axis = np.linspace(0, 1, 1000)
    with pytest.raises(BudgetError, match=r"a grid of 1,000,000,000 points needs at least 22\.3 GiB"):
        points.as_points({"a": axis, "b": axis, "c": axis})


# --- mutations ---


WORDS = [
    "1",
    "0.25",
    "nan",
    "inf",
    "-1",
    "1e400",
    "0x" + "f" * 90,
    '"\\u001b[31m"',
    "[]",
    "{}",
    "[[[]]]",
    "true",
    "''",
    "1" * 40,
]
LINES = [
    'experiment = "lifelong-cosine"',
    "seeds = 3",
    "first_seed = 2",
    "chunk = 2",
    "memory_gb = 0.5",
    'outputs = ["recovery", "regret"]',
    "[set]",
    "num_features = 8",
    "support_size = 2",
    "horizon = 12",
    'data = "all"',
    "[grid]",
    "lam = [0.1, 0.5]",
    "omega = [0.1, 0.3]",
]


def mutated(dice: random.Random) -> bytes:
    lines = list(LINES)
    for _ in range(dice.choice((1, 1, 2, 5))):
        place, action = dice.randrange(len(lines)), dice.random()
        name = lines[place].partition("=")[0]
        if action < 0.5:
            lines[place] = f"{name}= {dice.choice(WORDS)}"
        elif action < 0.6:
            del lines[place]
            lines.append(dice.choice(LINES))
        elif action < 0.8:
            lines[place] = f"{name}= [{dice.choice(WORDS)}, {dice.choice(WORDS)}]"
        else:
            lines.insert(
                place, dice.choice(["[[points]]", "[grid.lam]", '"\\u0000" = 1', "lam.x = 1", "\x1b = 2"])
            )
    data = bytearray("\n".join(lines).encode())
    if dice.random() < 0.4:
        for _ in range(dice.randrange(1, 6)):
            data[dice.randrange(len(data))] = dice.randrange(256)
    return bytes(data)


def check_mutated_configs(path: Path, seed: int, count: int) -> None:
    dice, seen = random.Random(seed), []
    for _ in range(count):
        path.write_bytes(mutated(dice))
        try:
            read_config(path)
        except ConfigError as error:
            seen.append(str(error))
    assert all(error.isprintable() and len(error) < 1100 and str(path) in error for error in seen)
    assert count // 2 < len(seen) < count


def test_mutated_configs_are_read_or_raise_a_config_error(tmp_path):
    check_mutated_configs(tmp_path / "config.toml", seed=0, count=400)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_many_mutated_configs_are_read_or_raise_a_config_error(tmp_path, seed):
    check_mutated_configs(tmp_path / "config.toml", seed, count=8000)
