"""`jlibo federated show`: what people see of a ballot."""

import pytest

from jlibo.cli.main import main
from jlibo.federated import BallotFile
from tests.federated.ballots import make_rules, vote


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "ballot.db")


def show(capsys, *arguments):
    code = main(["federated", "show", *arguments])
    output = capsys.readouterr()
    return code, output.out, output.err


def test_show_has_rules_elections_and_clients(path, capsys):
    with BallotFile.open(path, make_rules(max_votes=3)) as ballot:
        for number in range(9):
            ballot.cast(f"[bold]client {number // 3}\x1b", vote(number))
        support = ballot.announcement().support
        counts = ballot.counts()
    code, out, _ = show(capsys, path)
    assert code == 0
    assert "9 of 1000 votes, of 3 clients" in out
    assert "12 kernels; elected with 25% of the votes, from vote 4 on" in out
    assert "counted exactly, without privacy" in out
    assert f"elected: {', '.join(map(str, support))}" in out
    assert r"[bold]client 2\x1b" in out and "\x1b" not in out
    lines = out.splitlines()
    (heading,) = (place for place, line in enumerate(lines) if line.startswith("kernel"))
    rows = [line.split() for line in lines[heading + 1 : heading + 13]]
    assert {int(row[0]): float(row[1]) for row in rows} == dict(enumerate(counts))
    assert sorted(int(row[0]) for row in rows if row[-1] == "yes") == list(support)
    assert "exact" not in lines[heading]
    assert "exact" in show(capsys, path, "--exact")[1]


def test_show_before_the_first_election(path, capsys):
    with BallotFile.open(path, make_rules()) as ballot:
        code, out, _ = show(capsys, path)
        assert code == 0 and "elected: all, before the first election" in out
        ballot.cast("a", vote(0))
    code, out, _ = show(capsys, path)
    assert "elected: all, before the first election" in out and "yes" not in out


def test_show_of_another_file_fails_with_one_line(tmp_path, capsys):
    code, out, err = show(capsys, str(tmp_path / "none.db"))
    assert code == 2 and out == "" and err.startswith("jlibo: there is no ballot at")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "options, words",
    [
        (
            dict(mechanism="toeplitz", epsilon=1.0, delta=1e-5),
            "noise (Toeplitz), epsilon 1, delta 1e-05",
        ),
        (dict(mechanism="gnmax", epsilon=2.0, delta=1e-5), "independent noise (GNMax), epsilon 2"),
        (dict(mechanism="local", epsilon=3.0), "clients randomise each vote, epsilon 3"),
    ],
)
def test_show_states_the_privacy(path, capsys, options, words):
    BallotFile.open(path, make_rules(**options)).close()
    assert words in show(capsys, path)[1]
