"""Random, mostly invalid command lines: each gives a known exit code, at most one line and no traceback."""

import os
import random

import pytest

from jlibo import cli
from jlibo.cli.failures import UsageError
from jlibo.experiments import REGISTRY, runner

WORDS = [
    "",
    " ",
    "0",
    "-0",
    "-1",
    "1",
    "2",
    "0.5",
    "1e3",
    "1e39",
    "-1e39",
    "1e-300",
    "1e999",
    "nan",
    "-nan",
    "inf",
    "Infinity",
    "0x10",
    "1_000",
    "１２",
    "٣",
    "²",
    "1,5",
    "99999999999999",
    "2147483647",
    "2147483648",
    "18446744073709551616",
    "9" * 400,
    "9" * 5000,
    "0." + "1" * 5000,
    "true",
    "None",
    "lifelong-cosine",
    "../..",
    "/dev/null",
    "/dev/null/x",
    "a\nb",
    "\x1b[2J",
    "\udcff",
    "\0",
    "=",
    "==",
    "a=b=c",
    "é" * 300,
    "a" * 5000,
    "%s{0}",
    "[red]",
    "--",
    "-",
    "--help=1",
    "@file",
]
FIELDS = sorted({"name", "kind", *(name for one in REGISTRY.values() for name in one.settings())})
OPTIONS = ["--seeds", "--first-seed", "--out", "--set", "--x64", "--no-cache", "--se", "--frob", "-h1"]


def command_lines(seed: int, number: int):
    chance = random.Random(seed)
    names = [*REGISTRY, "lifelong-cosin"]
    for _ in range(number):
        words = [chance.choice(["reproduce", "reproduce", "reproduce", "list", "sweep", "memory", "bogus"])]
        if words == ["memory"]:
            words += [chance.choice(["show", "export", "import", "bogus"])]
        if chance.random() < 0.9:
            words.append(chance.choice(names) if chance.random() < 0.8 else chance.choice(WORDS))
        for _ in range(chance.randrange(4)):
            option = chance.choice(OPTIONS)
            words.append(option)
            if option == "--set":
                words.append(f"{chance.choice(FIELDS)}={chance.choice(WORDS)}")
            elif option.startswith("--") and option not in ("--x64", "--no-cache", "--frob"):
                words.append(chance.choice(WORDS))
        if chance.random() < 0.1:
            words.insert(chance.randrange(len(words) + 1), chance.choice(WORDS))
        yield words


@pytest.fixture
def quiet(tmp_path, monkeypatch):
    """Replace the experiment by a UsageError, so that no work is done."""

    def begin(*_, **__):
        raise UsageError("this is where the work begins.")

    monkeypatch.setattr(runner, "run_experiment", begin)
    # Precision and cache are settings of the process, which other tests use as well.
    monkeypatch.setattr("jax.config.update", lambda *_: None)
    monkeypatch.setenv("JLIBO_CACHE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def check_lines(lines, capsys, folder):
    reached = 0
    for words in lines:
        code = cli.main(words)
        shown = capsys.readouterr()
        assert code in (0, 2, 74), (words, shown.err)
        assert "Traceback" not in shown.err + shown.out, words
        assert "fault of jlibo" not in shown.err, (words, shown.err)
        assert shown.err.count("\n") == (code != 0), (words, shown.err)
        assert len(shown.err) < 1200 and "\x1b" not in shown.err, words
        reached += "where the work begins" in shown.err
    # No files were written; folders given by --out may exist, but are empty.
    assert not [name for _, _, names in os.walk(folder / "here") for name in names]
    return reached


@pytest.mark.parametrize("seed", range(3))
def test_random_command_lines(seed, quiet, capsys):
    assert check_lines(command_lines(seed, 150), capsys, quiet) > 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_random_command_lines(seed, quiet, capsys):
    check_lines(command_lines(seed, 1000), capsys, quiet)


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_with_every_unusual_value(name, quiet, capsys):
    lines = [["reproduce", "lifelong-cosine", "--no-cache", "--set", f"{name}={word}"] for word in WORDS]
    check_lines(lines, capsys, quiet)
