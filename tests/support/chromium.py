"""A headless Chromium, driven through its DevTools protocol: just enough to use a page as a person does."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

START_S = 60.0
PATIENCE_S = 120.0
WIDTH, HEIGHT = 1360, 850
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def executable() -> str | None:
    """The path of Chromium; None if it is not installed."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


class LeftPageError(Exception):
    """The page was left for another one before it answered."""


class Page:
    """One tab."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self.ask("Page.enable")
        self.ask("Runtime.enable")
        self.ask("Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and return its result."""
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(PATIENCE_S))
            if message.get("id") == number:
                error = message.get("error", {}).get("message", "")
                if "navigated" in error or "context was destroyed" in error or "Cannot find context" in error:
                    raise LeftPageError(f"{method}: {error}")
                assert not error, f"{method}: {message['error']}"
                result: dict[str, Any] = message["result"]
                return result

    def open(self, url: str) -> None:
        self.ask("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def text(self) -> str:
        return str(self.run("document.body ? document.body.innerText : ''"))

    def until(self, what: str, script: str, patience_s: float = PATIENCE_S) -> Any:
        """Wait until an expression is true, also in the page that a click leads to. Returns its value."""
        deadline = time.monotonic() + patience_s
        while True:
            with contextlib.suppress(LeftPageError):
                if found := self.run(f"(() => {{ try {{ return {script} }} catch (error) {{ return null }} }})()"):
                    return found
                assert time.monotonic() < deadline, f"{what}: not in {patience_s:g} s. The page says:\n{self.text()[:3000]}"
            time.sleep(0.3)

    def until_text(self, text: str, patience_s: float = PATIENCE_S) -> None:
        self.until(f"text {text!r}", f"document.body.innerText.includes({json.dumps(text)})", patience_s)

    def click(self, text: str, within: str = "button, a, span, div") -> None:
        """Click the element with exactly this text, by a real press at its position: menus react to nothing less.

        The page's scripts run by then.
        """
        place = self.until(
            f"something to click that says {text!r}",
            f"""(() => {{
                if (document.readyState !== "complete") return null;
                const found = [...document.querySelectorAll({json.dumps(within)})]
                    .filter(one => one.innerText.trim() === {json.dumps(text)} && one.offsetParent !== null && !one.disabled);
                if (!found.length) return null;
                const one = found[found.length - 1];
                one.scrollIntoView({{ block: "center", behavior: "instant" }});
                const box = one.getBoundingClientRect();
                return box.width ? [box.x + box.width / 2, box.y + box.height / 2] : null;
            }})()""",
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def write(self, selector: str, text: str) -> None:
        """Replace the text of a field. The page's scripts run by then."""
        found = f"document.readyState === 'complete' && !!document.querySelector({json.dumps(selector)})"
        self.until(f"a field {selector}", found)
        self.run(f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.focus(); one.select(); }})()")
        self.ask("Input.insertText", text=text)
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)

    def picture(self, path: Path) -> None:
        """A screenshot, as PNG."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def chromium(directory: Path) -> Iterator[Page]:
    """A browser with one tab. It ends with the block."""
    from websockets.sync.client import connect

    found = executable()
    assert found is not None, "there is no chromium"
    log = directory / "chromium.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [found, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0",
             f"--user-data-dir={directory / 'chromium'}", f"--window-size={WIDTH},{HEIGHT}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        with connect(_first_page(log), max_size=None, open_timeout=START_S) as socket:
            yield Page(socket)
    finally:
        process.kill()
        process.wait()


def _first_page(log: Path) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if match := re.search(r"DevTools listening on ws://([\d.]+:\d+)/", log.read_text(errors="replace")):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{match[1]}/json/list", timeout=10) as answer:
                pages = [one for one in json.loads(answer.read()) if one["type"] == "page"]
                if pages:
                    return str(pages[0]["webSocketDebuggerUrl"])
        time.sleep(0.1)
    raise AssertionError(f"chromium does not start\n{log.read_text(errors='replace')[-2000:]}")
