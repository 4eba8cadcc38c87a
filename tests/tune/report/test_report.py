"""The report of a memory: its content, and a page that hostile names cannot break."""

import html
import json
import re
import stat
import warnings
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

import numpy as np
import pytest

import jlibo
from jlibo.cli import main
from jlibo.printable import printable
from jlibo.tune.memory.memory import Memory
from jlibo.tune.report import content as contents
from jlibo.tune.report.content import content_of
from jlibo.tune.report.page import embedded, page
from tests.tune.report.memories import HOSTILE, KIND, SPACE, hostile_tuner, many_tasks, score

TITLE = "</title><script>window.hacked = 4</script>"


@pytest.fixture(scope="module")
def tuner():
    return hostile_tuner(jlibo.FixedPrior())  # this learner is compiled quickly; a slow test has the default


@pytest.fixture(scope="module")
def shown(tuner):
    return content_of(tuner.memory, tuner, num_defaults=3)


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the text of its scripts."""

    def __init__(self):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._in_script = False

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        self._in_script = tag == "script"

    def handle_endtag(self, tag):
        self._in_script = False

    def handle_data(self, data):
        if self._in_script:
            self.scripts[-1] += data


def parsed(text: str) -> Elements:
    reader = Elements()
    reader.feed(text)
    return reader


# --- content ------------------------------------------------------------------------------------------------


def test_content_is_that_of_the_memory(tuner, shown):
    plots = shown.plots
    assert [task["name"] for task in plots["tasks"]] == [*map(printable, HOSTILE), "nothing yet"]
    assert [(task["complete"], task["failed"]) for task in plots["tasks"]] == [(23, 1)] * 4 + [(0, 0)]
    trials, (_, records) = plots["trials"], tuner.memory.snapshot()
    assert trials["score"] == pytest.approx([record.score for record in records], nan_ok=True)
    assert [plots["states"][one] for one in trials["state"]] == [record.state for record in records]
    for values, (name, parameter), shape in zip(
        trials["values"], SPACE.items(), plots["parameters"], strict=True
    ):
        for value, record in zip(values, records, strict=True):
            if name not in record.params:
                assert value is None
            elif shape["choices"] is None:
                assert value == pytest.approx(record.params[name], rel=1e-8)
            else:
                assert parameter.choices[value] == record.params[name]
                assert eval(shape["python"][value]) == record.params[name]
        assert eval(shape["key"]) == name
    importance = tuner.importance()
    assert [one["importance"] for one in plots["parameters"]] == pytest.approx(
        [importance[name] for name in (KIND, "depth", "log rate")], rel=1e-6
    )
    assert plots["shown"][0] == SPACE.names.index("rate")
    assert shown.defaults == tuner.defaults(3)
    assert shown.notes == []


def test_curves_follow_the_function_and_their_own_uncertainty(shown):
    curves = shown.plots["curves"]
    place = SPACE.names.index("rate")
    rates = np.array(curves["points"][place])
    for task in range(4):
        curve = curves["tasks"][task][place]
        truth = np.array([score({"rate": rate, KIND: ""}, 0.02 * task) for rate in rates])
        mean, std = np.array(curve["mean"]), np.array(curve["std"])
        assert np.corrcoef(mean, truth)[0, 1] > 0.9
        assert np.abs((mean - mean.mean()) - (truth - truth.mean())).max() < 0.35 * np.ptp(truth)
        assert (std > 0).all()
        assert rates[0] <= curve["at"] <= rates[-1]
    new = curves["new"][place]
    # Of a new task less is known, in units of the scores' standard deviation.
    sample = [SPACE.from_unit(point) for point in SPACE.sample_unit(64, rng=np.random.default_rng(0))]
    size = np.std([score(params, 0.0) for params in sample])
    assert np.mean(new["std"]) > np.mean(curves["tasks"][0][place]["std"]) / size
    assert curves["points"][SPACE.names.index(KIND)] == [0, 1, 2]
    assert curves["points"][SPACE.names.index("depth")] == list(range(1, 10))


def test_minimising_mirrors_the_curves(shown):
    other = hostile_tuner(jlibo.FixedPrior(), maximise=False)
    mirrored = content_of(other.memory, other, num_defaults=3).plots
    assert not mirrored["maximise"] and mirrored["shown"] == shown.plots["shown"]
    for task, own in mirrored["curves"]["tasks"].items():
        for one, other in zip(own, shown.plots["curves"]["tasks"][task], strict=True):
            assert one["mean"] == pytest.approx([-value for value in other["mean"]], rel=1e-3, abs=1e-3)
            assert one["std"] == pytest.approx(other["std"], rel=2e-2)
            assert one["at"] == other["at"]


def test_a_parameter_that_is_off_has_no_curve():
    tuner = jlibo.Tuner(SPACE, learner=jlibo.FixedPrior())
    own = [{"rate": rate, KIND: (1, 2)} for rate in (0.1, 0.2, 0.3)]
    tuner.add_task("no tree", own, [1.0, 2.0, 3.0])
    (curves,) = content_of(tuner.memory, tuner, num_defaults=1).plots["curves"]["tasks"].values()
    assert curves[SPACE.names.index("depth")] is None and curves[SPACE.names.index("rate")] is not None


def test_memories_without_a_model_have_a_report(tmp_path):
    tuner = jlibo.Tuner(SPACE, tmp_path / "memory.db")
    for name, scores in (("failed", [None, None]), ("one score", [1.0])):
        assert json.loads(embedded(content_of(tuner.memory, tuner, num_defaults=2).plots))["curves"] is None
        tuner.add_task(
            name, [{"rate": 0.1, KIND: (1, 2)}, {"rate": 0.2, KIND: (1, 2)}][: len(scores)], scores
        )
    shown = content_of(tuner.memory, tuner, num_defaults=2)
    assert "There are none yet" in page(shown)


def test_trials_that_do_not_fit_are_left_out_and_stopped_ones_counted(tmp_path):
    path = tmp_path / "memory.db"
    with jlibo.Tuner(jlibo.SearchSpace(x=jlibo.Float(0, 10)), path) as wide:
        wide.add_task("first", [{"x": 1.0}, {"x": 9.0}, {"x": 2.0}], [1.0, 5.0, 2.0])
        task = wide.task("second", budget=3)
        task.enqueue({"x": 3.0})
        wide.memory.stop(task.ask().id, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that the space has changed
        narrow = jlibo.Tuner(jlibo.SearchSpace(x=jlibo.Float(0, 5)), path)
    shown = content_of(narrow.memory, None, num_defaults=1)
    assert shown.notes == ["Trials that do not fit into the search space are not drawn: 1."]
    assert shown.plots["trials"]["values"] == [[1.0, 2.0, 3.0]]
    assert shown.plots["trials"]["score"] == [1.0, 2.0, None]
    first, second = shown.plots["tasks"]
    assert first["best_score"] == 2.0 and (second["stopped"], second["complete"]) == (1, 0)
    assert "<li><b>4</b> trials</li>" in page(shown)
    narrow.close()


def test_large_memories_are_cut_and_say_so(monkeypatch):
    memory = many_tasks(6, 10)
    monkeypatch.setattr(contents, "MOST_TRIALS", 35)
    monkeypatch.setattr(contents, "MOST_SHOWN", 2)
    shown = content_of(memory, None, num_defaults=1, no_model="The model is left out.")
    assert sorted(set(shown.plots["trials"]["task"])) == [3, 4, 5] and len(shown.plots["tasks"]) == 6
    assert len(shown.plots["shown"]) == 2
    assert [note.split(":")[0] for note in shown.notes] == [
        "The model is left out.",
        "30 of 60 trials are drawn",
        "2 of 3 parameters have plots",
    ]
    assert all(html.escape(note) in page(shown) for note in shown.notes)


# --- the page -----------------------------------------------------------------------------------------------


def test_hostile_names_stay_text(shown):
    text = page(shown, title=TITLE, memory="/a/<b>.db")
    read = parsed(text)
    assert [tag for tag, _ in read.found].count("script") == 2  # the data and the page's own script
    assert not {"img", "iframe", "object", "i", "base", "form"} & {tag for tag, _ in read.found}
    assert not any(name.startswith("on") for _, attributes in read.found for name in attributes)
    data = json.loads(read.scripts[0])
    assert [task["name"] for task in data["tasks"]][:4] == list(map(printable, HOSTILE))
    assert data["parameters"][0]["name"] == KIND
    assert html.escape(TITLE, quote=True) in text


@pytest.mark.parametrize("text", ["</script>", "<!--", "]]>", "&lt;", "\u2028\u2029", "\ud800", "'\"\\"])
def test_embedded_data_cannot_end_its_block(text):
    inside = embedded({text: [text]})
    assert json.loads(inside) == {text: [text]}
    assert inside.isascii() and not set("<>&") & set(inside)


def test_the_page_loads_nothing_and_allows_its_own_script_alone(shown):
    text = page(shown)
    read = parsed(text)
    own = read.scripts[1]
    (policy,) = [one["content"] for tag, one in read.found if tag == "meta" and "http-equiv" in one]
    assert f"script-src 'sha256-{b64encode(sha256(own.encode()).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy
    loaded = [one.get("src") or one.get("href") for _, one in read.found]
    assert {where for where in loaded if where and not where.startswith("#")} == {"data:,"}
    assert not re.search(r"@import|url\(", text)
    assert "innerHTML" not in own and "eval(" not in own


def test_defaults_are_code_to_paste(tuner, shown):
    text = page(shown)
    code = html.unescape(re.search(r'<pre id="defaults-code">(.*?)</pre>', text, re.DOTALL)[1])
    names: dict = {}
    exec(code, names)
    assert names["defaults"] == tuner.defaults(3)


# --- writing ------------------------------------------------------------------------------------------------


def test_report_is_written_for_its_owner_alone(tmp_path):
    path = tmp_path / "memory.db"
    with Memory.open(path, space=SPACE) as memory:
        tuner = jlibo.Tuner(SPACE, memory)
        where = tuner.report(tmp_path / "report.html", title="My title")
        assert where == tmp_path / "report.html" and "<h1>My title</h1>" in where.read_text()
        assert stat.S_IMODE(where.stat().st_mode) == 0o600
        before = path.read_bytes()
        with pytest.raises(ValueError, match="`path` should be the path of a page to write, but got"):
            tuner.report(path)
        assert path.read_bytes() == before
        with pytest.raises(ValueError, match="`num_defaults` should be a whole number >= 1, but got 0"):
            tuner.report(tmp_path / "report.html", num_defaults=0)
        with pytest.raises(FileNotFoundError):
            tuner.report(tmp_path / "missing" / "report.html")
    assert [one.name for one in sorted(tmp_path.iterdir())] == ["memory.db", "report.html"]


def test_command_line_writes_the_report(tmp_path, capsys):
    path, out = tmp_path / "memory.db", tmp_path / "page.html"
    with Memory.open(path, space=SPACE):
        pass
    assert main(["memory", "report", str(path), "-o", str(out), "--title", "<Mine>"]) == 0
    assert capsys.readouterr().out == f"wrote {out}; open it in a browser.\n"
    assert "<h1>&lt;Mine&gt;</h1>" in out.read_text()
    for more, words in (
        (["-o", str(path)], "the memory itself"),
        (["-o", str(tmp_path / "missing" / "page.html")], "cannot write"),
        (["--defaults", "0", "-o", str(out)], "--defaults should be at least 1"),
    ):
        assert main(["memory", "report", str(path), *more]) != 0
        error = capsys.readouterr().err
        assert words in error and len(error.splitlines()) <= 2, error


@pytest.mark.slow
def test_page_of_fifty_tasks_is_small_and_has_all_parts(tmp_path):
    tuner = jlibo.Tuner(SPACE, many_tasks(50, 50))
    assert tuner.report(tmp_path / "report.html").stat().st_size < 1_000_000
    shown = content_of(tuner.memory, tuner, num_defaults=5)
    assert len(shown.plots["curves"]["tasks"]) == 50 and len(shown.defaults) == 5
    place = SPACE.names.index("rate")
    for task in (0, 49):
        curve, rates = shown.plots["curves"]["tasks"][task][place], shown.plots["curves"]["points"][place]
        truth = [score({"rate": rate, KIND: ""}, 0.001 * task) for rate in rates]
        assert np.corrcoef(curve["mean"], truth)[0, 1] > 0.99
