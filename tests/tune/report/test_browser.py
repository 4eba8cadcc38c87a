"""The page of a report in a real browser: what is drawn, and what clicks, drags and keys do.

The tests are skipped where there is no Chromium. On Debian: apt-get install chromium.
"""

import io
import math
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

import jlibo
from jlibo.printable import printable
from jlibo.tune import Defaults
from jlibo.tune.report import write_report
from jlibo.tune.report.content import Believed, content
from jlibo.tune.report.curves import Curve, Curves
from jlibo.tune.report.page import page as html_page
from tests.tune.report.browser import Browser, open_browser
from tests.tune.report.memories import HOSTILE, SPACE, hostile_tuner, many_tasks

NUM_SCORED = 92
SCORE_AXIS = "document.querySelector('#parallel [data-axis=\"-1\"]')"


@pytest.fixture(scope="module")
def browser():
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """The page of a memory with hostile names. The model's part is made up, so that nothing is compiled."""
    memory = hostile_tuner().memory
    units = np.linspace(0, 1, 9)
    points = [
        [one.value_of(float(code)) for code in np.unique(one.unit_to_codes(units))] for one in SPACE.values()
    ]
    own = [Curve([0.1 * i for i in range(len(p))], [0.2] * len(p), p[1]) for p in points]
    curves = Curves(points, {task.id: [*own[:2], None] for task in memory.tasks()[:4]}, own)
    made_up = Believed(
        dict(zip(SPACE.names, (0.3, 0.0, 0.7), strict=True)), Defaults([{"rate": 0.1}]), curves
    )
    shown = content(SPACE, *memory.snapshot(), made_up, maximise=True)
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(html_page(shown, title="</title><script>window.hacked = 4</script>"), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def _no_complaints(browser):
    """Each page writes nothing to the console, asks for no other file, and runs no script from a name."""
    browser.messages.clear()
    browser.requests.clear()
    yield
    assert browser.messages == []
    assert all(one.startswith("file:") and one.endswith(".html") for one in browser.requests)
    assert browser.run("typeof window.hacked") == "undefined"


def pixels(picture: bytes) -> np.ndarray:
    return (matplotlib.image.imread(io.BytesIO(picture), format="png")[..., :3] * 255).astype(int)


def count(browser: Browser, selector: str) -> int:
    return browser.run(f"document.querySelectorAll({selector!r}).length")


def num_dots(browser: Browser, selector: str) -> int:
    return browser.run(
        f"[...document.querySelectorAll({selector!r})].reduce((sum, it) => sum + Number(it.dataset.count), 0)"
    )


def test_everything_is_drawn(browser, page):
    browser.open(page, width=1200, height=800)
    picture = pixels(browser.screenshot())
    assert picture.shape == (800, 1200, 3)
    colours = np.unique(picture.reshape(-1, 3), axis=0)
    assert len(colours) > 50 and picture.std() > 10  # not blank
    assert picture[-1, 2].min() > 240  # light
    num_parameters = len(SPACE)
    assert count(browser, "#tasks-table tbody tr") == 5
    assert count(browser, "#progress path.line") == 4  # a task without scores has no line
    assert count(browser, "#importance li") == num_parameters
    assert count(browser, "#slices svg") == num_parameters
    on = browser.run("trials.values.map((own) => own.filter((one, i) => one !== null && isScored[i]).length)")
    assert num_dots(browser, "#slices .dots") == sum(on) and max(on) == NUM_SCORED
    assert count(browser, "#pairs svg") == 3
    assert count(browser, "#parallel [data-axis]") == num_parameters + 1
    assert num_dots(browser, "#parallel .line[data-count]") == NUM_SCORED
    assert count(browser, "#curves svg") == num_parameters and count(browser, "#curves .band") == 2
    assert count(browser, "#curves .mean-spot") == 3  # one for each choice
    assert count(browser, "#defaults pre") == 1
    names = browser.run("[...document.querySelectorAll('#tasks-table tbody th')].map((it) => it.textContent)")
    assert names[:4] == list(map(printable, HOSTILE))
    assert count(browser, "script") == 2 and count(browser, "img") == 0


def test_pointing_at_a_line_names_its_task_and_a_click_highlights_it(browser, page):
    browser.open(page)
    browser.run("document.querySelector('input[value=score]').click()")
    browser.drawn()
    browser.place("document.querySelector('#progress svg')")
    x, y = browser.run(
        "(() => { const it = document.querySelector('#progress path[data-task=\"2\"]'); "
        "const at = it.getPointAtLength(it.getTotalLength() - 30); "
        "const box = it.ownerSVGElement.getBoundingClientRect(); "
        "return [box.left + at.x, box.top + at.y]; })()"
    )
    browser.hover(x, y)
    assert not browser.run("document.getElementById('tip').hidden")
    assert browser.run("document.getElementById('tip').textContent").startswith(printable(HOSTILE[2]))
    browser.click(x, y)
    assert browser.run("document.getElementById('task').value") == "2"
    assert count(browser, "#progress path.selected[data-task='2']") == 1
    assert count(browser, "#progress path.dim") == 3
    assert browser.run("document.querySelector('tr.chosen th').textContent") == printable(HOSTILE[2])
    assert count(browser, "#slices .dots.dim") == 0  # scores of other tasks are on another scale
    assert printable(HOSTILE[2]) in browser.run("document.getElementById('curves-words').textContent")
    browser.press("Escape", 27)
    assert browser.run("document.getElementById('task').value") == ""
    assert count(browser, "#progress path.dim") == 0


def test_table_selects_sorts_and_filters(browser, page):
    browser.open(page)
    browser.click(*browser.place("document.querySelector('button[data-task=\"1\"]')"))
    assert browser.run("state.task") == 1
    assert browser.run("document.querySelector('button[data-task=\"1\"]').ariaPressed") == "true"
    browser.click(*browser.place("document.querySelector('button[data-key=best_score]')"))
    best = browser.run("[...document.querySelectorAll('tbody td:nth-child(5)')].map((it) => it.textContent)")
    numbers = [math.nan if text == "–" else float(text) for text in best]
    assert numbers[:4] == sorted(numbers[:4], reverse=True) and math.isnan(numbers[4])
    browser.run("document.getElementById('filter').focus()")
    for letter in "IMG":
        browser.press(letter, ord(letter), letter)
    assert count(browser, "#tasks-table tbody tr") == 1


def test_a_click_on_a_point_shows_its_trial(browser, page):
    browser.open(page)
    browser.place("document.querySelector('#slices svg')")
    trial = browser.run("scored[5]")
    x, y = browser.run(
        f"(() => {{ const svg = document.querySelectorAll('#slices svg')[0], trial = {trial}; "
        "const parameter = data.shown[0], box = svg.getBoundingClientRect(); "
        "const u = placeOf(parameter, scaleOf(parameter), trial), v = ranks[trial]; "
        "return [box.left + 54 + u * (box.width - 66), box.top + 10 + (1 - v) * (box.height - 50)]; })()"
    )
    browser.click(x, y)
    assert browser.run("state.trial") == trial
    panel = browser.run("document.getElementById('trial').textContent")
    assert panel.startswith(f"{printable(HOSTILE[0])}, trial ")
    code = browser.run("document.querySelector('#trial pre').textContent")
    assert SPACE.validate(eval(code))["rate"] == pytest.approx(
        browser.run(f"trials.values[{SPACE.names.index('rate')}][{trial}]")
    )
    assert count(browser, "circle.chosen") >= 1 and count(browser, "#parallel .line.selected") == 1


def test_a_drag_along_an_axis_filters_trials(browser, page):
    browser.open(page)
    x, y = browser.place(SCORE_AXIS)
    height = browser.run(f"{SCORE_AXIS}.getBoundingClientRect().height") - 16  # the axis has a margin of 8
    browser.drag((x, y - height / 2 + 0.02 * height), (x, y - 0.02 * height))
    low, high = browser.run("state.ranges.get(SCORE)")
    assert (low, high) == (pytest.approx(0.52, abs=0.01), pytest.approx(0.98, abs=0.01))
    ranks = browser.run("scored.map((trial) => ranks[trial])")
    kept = sum(low <= rank <= high for rank in ranks)
    assert (
        browser.run("document.getElementById('parallel-words').textContent")
        == f"{kept} of {NUM_SCORED} trials."
    )
    assert num_dots(browser, "#parallel .line[data-count]") == kept
    assert browser.run("state.trial") is None  # the end of a drag is no click on a line
    browser.click(*browser.place("document.getElementById('parallel-clear')"))
    assert num_dots(browser, "#parallel .line[data-count]") == NUM_SCORED


def test_axes_can_be_used_with_the_keyboard(browser, page):
    browser.open(page)
    browser.run(f"{SCORE_AXIS}.focus()")
    browser.press("ArrowUp", 38)
    assert browser.run("state.ranges.get(SCORE)") == [0.5, 1]
    browser.press("ArrowDown", 40)
    assert browser.run("state.ranges.get(SCORE)") == pytest.approx([0.45, 0.95])
    assert browser.run(f"document.activeElement === {SCORE_AXIS}")
    browser.press("Escape", 27)
    assert browser.run("state.ranges.size") == 0


def test_dark_and_narrow(browser, page):
    browser.open(page, width=390, height=844, is_dark=True)
    picture = pixels(browser.screenshot())
    assert picture.shape == (844, 390, 3) and np.median(picture) < 60
    assert browser.run("document.documentElement.scrollWidth") <= 390
    browser.run("document.getElementById('theme').click()")
    browser.drawn()
    assert np.median(pixels(browser.screenshot())) > 200


@pytest.mark.parametrize("scores", [[], [[None, None]], [[1.0]], [[2.0, 2.0]]], ids=str)
def test_small_memories_are_drawn(browser, tmp_path, scores):
    tuner = jlibo.Tuner(jlibo.SearchSpace(x=jlibo.Float(0, 1)))
    for place, own in enumerate(scores):
        tuner.add_task(f"task {place}", [{"x": 0.1 * (i + 1)} for i in range(len(own))], own)
    # Without the model, of which nothing is known of these memories but for the last one.
    browser.open(write_report(tuner.memory, None, tmp_path / "report.html", no_model="No model."))
    assert count(browser, "#tasks-table tbody tr") == len(scores)
    assert browser.run("document.getElementById('curves-words').textContent") == "No model."


def test_four_hundred_tasks(browser, tmp_path):
    memory = many_tasks(400, 6)
    browser.open(write_report(memory, None, tmp_path / "report.html", no_model="No model."))
    assert count(browser, "#progress path.line") == 400
    assert count(browser, "#task option") == 401
    height = browser.run("document.getElementById('progress-section').getBoundingClientRect().height")
    assert height < 520  # no legend with a row for each task
    browser.run("select(399)")
    browser.drawn()
    assert "data set 399" in browser.run("document.getElementById('legend').textContent")
