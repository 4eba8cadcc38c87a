"""A headless Chromium, driven by the DevTools protocol over two pipes. No other package is needed.

Mouse events are those of the browser: they hit what is on top at a place, as a user's do.
"""

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb"),
    "--remote-debugging-pipe",
)
# Chromium reads commands from file descriptor 3 and writes answers to 4.
LAUNCH = """
import os, sys
reading, writing = int(sys.argv[1]), int(sys.argv[2])
copies = os.dup(reading), os.dup(writing)
spare = [os.dup(copy) for copy in copies for _ in range(4)]  # 3 and 4 may be in use: copy from above them
os.dup2(spare[0], 3), os.dup2(spare[-1], 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def find_chromium() -> str:
    """Return the path of Chromium or Chrome, or skip the test."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"there is no browser: none of {', '.join(NAMES)} is installed")
    return found


class Browser:
    """One page in a running browser."""

    def __init__(self, process: subprocess.Popen[bytes], sending: int, receiving: int):
        self._process = process
        self._sending, self._receiving = sending, receiving
        self._rest = b""
        self._number = 0
        self.messages: list[str] = []
        """What the page wrote to the console, its exceptions and refused requests."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.requests: list[str] = []
        """The addresses that the page asked for, data in the page itself left out."""

    def _call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._sending, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._receiving, 1 << 16)
            assert more, "the browser ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.consoleAPICalled":
            self.messages.append(f"console: {params['args']}")
        elif event.get("method") == "Runtime.exceptionThrown":
            self.messages.append(f"exception: {params['exceptionDetails']}")
        elif event.get("method") == "Log.entryAdded":
            self.messages.append(f"log: {params['entry']['text']}")
        elif event.get("method") == "Network.requestWillBeSent":
            address = params["request"]["url"]
            if not address.startswith("data:"):
                self.requests.append(address)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol on the page and return its result."""
        return self._call(method, self._session, **params)

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, page: Path, *, width: int = 1280, height: int = 900, is_dark: bool = False) -> None:
        """Open a file and wait until it is drawn."""
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=page.as_uri())
        self.run(
            "new Promise((done) => { const wait = () => document.readyState === 'complete' && "
            "document.body.dataset.ready ? done() : setTimeout(wait, 20); wait(); })"
        )

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def drawn(self) -> None:
        """Wait until a change is drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def place(self, expression: str) -> tuple[float, float]:
        """Return the centre of an element, in pixels of the window, after scrolling to it."""
        box = self.run(
            f"(() => {{ const it = {expression}; it.scrollIntoView({{block: 'center'}}); "
            "const box = it.getBoundingClientRect(); "
            "return [box.left + box.width / 2, box.top + box.height / 2]; })()"
        )
        return box[0], box[1]

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        button = {"button": "left", "clickCount": 1} if kind in ("mousePressed", "mouseReleased") else {}
        button |= {"buttons": 1} if kind == "mousePressed" else {}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button | more)

    def hover(self, x: float, y: float) -> None:
        self.mouse("mouseMoved", x, y)
        self.drawn()

    def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, x, y)
        self.drawn()

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        self.mouse("mouseMoved", *start)
        self.mouse("mousePressed", *start)
        for share in (0.25, 0.5, 0.75, 1):
            place = [a + share * (b - a) for a, b in zip(start, end, strict=True)]
            self.mouse("mouseMoved", *place, buttons=1)
        self.mouse("mouseReleased", *end)
        self.drawn()

    def press(self, key: str, code: int, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more)
        self.drawn()

    def screenshot(self, *, whole: bool = False) -> bytes:
        """Return a PNG of the window, or of the whole page."""
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(picture["data"])


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a browser with an empty profile, and end it and its processes afterwards."""
    path = find_chromium()
    commands, answers = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", LAUNCH, str(commands[0]), str(answers[1])),
                *(path, *FLAGS, f"--user-data-dir={profile}", "about:blank"),
            ],
            pass_fds=(commands[0], answers[1]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(commands[0])
        os.close(answers[1])
        try:
            yield Browser(process, commands[1], answers[0])
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its own session: no other process is in it
            process.wait(timeout=30)
            os.close(commands[1])
            os.close(answers[0])
