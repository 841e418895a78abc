"""A real Chromium for tests, where it is installed: it opens, measures and photographs pages."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHECKS = Path(__file__).with_name("page_checks.js")
OPTIONS = (
    "--headless",
    "--no-sandbox",  # root, as in containers, may not use it; only pages of this project are opened
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
# The descriptors of the debugger's pipe are fixed: the browser reads 3 and writes 4.
_START = """import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])"""


class MissingBrowserError(Exception):
    """This machine has no Chromium; the message says how to get it."""


def find_browser() -> str:
    """Path of the browser's program."""
    for program in PROGRAMS:
        if path := shutil.which(program):
            return path
    raise MissingBrowserError("no Chromium is installed; Debian has it in the package chromium-headless-shell")


class Page:
    """One page of a browser that runs.

    Attributes:
        requests: URLs that the page opened last asked for, its own included.
        errors: what went wrong in its scripts.
    """

    def __init__(self, to_browser: BinaryIO, from_browser: BinaryIO, log: Path) -> None:
        self._to, self._from, self._log = to_browser, from_browser, log
        self._sent, self._unread = 0, b""
        self._session: dict[str, str] = {}
        self.requests: list[str] = []
        self.errors: list[str] = []
        page = self._ask("Target.createTarget", url="about:blank")["targetId"]
        opened = self._ask("Target.attachToTarget", targetId=page, flatten=True)
        self._session = {"sessionId": opened["sessionId"]}
        for domain in ("Page", "Network", "Runtime"):
            self._ask(f"{domain}.enable")

    def open(self, path: Path | str, width: int, theme: str) -> None:
        """Load a file, or what a URL has, and run its scripts.

        Args:
            width: of the window, in pixels.
            theme: what its user prefers: `light` or `dark`.
        """
        self.requests, self.errors = [], []
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        preferred = [{"name": "prefers-color-scheme", "value": theme}]
        self._ask("Emulation.setEmulatedMedia", features=preferred)
        self._ask("Page.navigate", url=path.as_uri() if isinstance(path, Path) else path)
        while (message := self._read()).get("method") != "Page.loadEventFired":
            self._note(message)

    def check(self, name: str) -> list[str]:
        """What one of the functions of `page_checks.js` finds wrong; everything is unfolded for it."""
        self.run(CHECKS.read_text(encoding="utf-8"))
        self.run("checks.unfold()")
        faults: list[str] = self.run(f"checks.{name}()")
        return faults

    def run(self, script: str) -> Any:
        """Value of a JavaScript expression, a promise awaited."""
        answer = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def photograph(self, path: Path, height: int | None = None) -> None:
        """Write a PNG of the whole page, or of its upper part of this height."""
        size = self._ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        shot = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self._session = {}
        self._ask("Browser.close")

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._sent += 1
        request = {"id": self._sent, "method": method, "params": parameters, **self._session}
        self._to.write(json.dumps(request).encode() + b"\0")
        self._to.flush()
        while (message := self._read()).get("id") != self._sent:
            self._note(message)
        assert "error" not in message, f"{method}: {message['error']}"
        result: dict[str, Any] = message["result"]
        return result

    def _read(self) -> dict[str, Any]:
        """The next message; each ends in a zero byte."""
        while b"\0" not in self._unread:
            more = os.read(self._from.fileno(), 1 << 20)
            assert more, f"the browser ended: {self._log.read_text(errors='replace')}"
            self._unread += more
        first, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        elif message.get("method") == "Runtime.exceptionThrown":
            details = message["params"]["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))


def _pipe() -> tuple[int, int]:
    """Both ends of a pipe, with numbers that are none of the browser's."""
    ends = os.pipe()
    above = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return above[0], above[1]


@contextmanager
def run_browser(folder: Path) -> Iterator[Page]:
    """A page of a browser, until it is left.

    Raises:
        MissingBrowserError: none is installed.
    """
    program = [find_browser(), *OPTIONS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    requests, answers = _pipe(), _pipe()
    handed = (requests[0], answers[1])
    log = folder / "browser.log"
    with log.open("wb") as errors:
        command = [sys.executable, "-c", _START, *map(str, handed), *program]
        browser = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, pass_fds=handed)
    for end in handed:
        os.close(end)
    with open(requests[1], "wb") as to_browser, open(answers[0], "rb") as from_browser:
        try:
            page = Page(to_browser, from_browser, log)
            yield page
            page.close()
        finally:
            browser.kill()
            browser.wait()
