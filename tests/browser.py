"""A real browser without a driver: headless Chromium, spoken to over a pipe in its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "headless_shell")
_ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
_START = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3]]
for here, there in zip(ends, (3, 4)):
    os.dup2(here, there)
os.execv(sys.argv[3], sys.argv[3:])
"""
_PATIENCE = 60.0  # seconds, for one answer, on a busy machine


def chromium() -> str | None:
    """Where the browser is, if there is one."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


@dataclass(frozen=True)
class View:
    """How a page is looked at."""

    width: int
    height: int = 900
    dark: bool = False
    media: str = ""  # "print" as on paper


class Browser:
    """One Chromium, with one page at a time. It asks nobody: whatever is not a file is an error of the page."""

    def __init__(self) -> None:
        found = chromium()
        assert found is not None
        self._profile = tempfile.mkdtemp(prefix="sordino-browser-")
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        # The protocol is on descriptors 3 and 4, which may be taken on our side.
        start = [sys.executable, "-c", _START, str(theirs_in), str(theirs_out)]
        self._process = subprocess.Popen(
            [*start, found, *_ARGUMENTS, f"--user-data-dir={self._profile}"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._rest, self._number = b"", 0
        self._events: list[dict[str, Any]] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def close(self) -> None:
        try:
            self._ask("Browser.close")
            self._process.wait(10)
        except (OSError, TimeoutError, EOFError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, page: Path, view: View) -> list[str]:
        """Show a page; what it complains of: errors of scripts, of the console, of the policy, and requests."""
        colours = {"name": "prefers-color-scheme", "value": "dark" if view.dark else "light"}
        self._ask("Emulation.setEmulatedMedia", media=view.media, features=[colours])
        size = {"width": view.width, "height": view.height, "deviceScaleFactor": 1}
        self._ask("Emulation.setDeviceMetricsOverride", **size, mobile=view.width < 600)
        self._events.clear()
        went = self._ask("Page.navigate", url=page.resolve().as_uri())
        assert "errorText" not in went, went
        self._until("Page.loadEventFired")
        self.run("document.fonts.ready.then(() => new Promise(requestAnimationFrame)).then(() => 1)")
        return [said for event in self._events if (said := _complaint(event, page))]

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self, path: Path, whole: bool = True) -> None:
        shot = self._ask(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole)
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        width, height = self.run("[innerWidth, document.documentElement.scrollHeight]")
        return {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if getattr(self, "_session", None) is not None:
            message["sessionId"] = self._session
        if method.startswith(("Target.", "Browser.")):
            message.pop("sessionId", None)
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._events.append(answer)

    def _until(self, method: str) -> None:
        while not any(event.get("method") == method for event in self._events):
            self._events.append(self._read())

    def _read(self) -> dict[str, Any]:
        ends = time.monotonic() + _PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, ends - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            more = os.read(self._from, 1 << 20)
            if not more:
                raise EOFError("the browser is gone")
            self._rest += more
        whole, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(whole)
        return found


def _complaint(event: dict[str, Any], page: Path) -> str | None:
    method, said = event.get("method"), event.get("params", {})
    if method == "Runtime.exceptionThrown":
        return f"exception: {said['exceptionDetails'].get('text')}"
    if method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
        return f"console: {said['type']}: {[each.get('value') for each in said['args']]}"
    if method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
        return f"log: {said['entry']['text']}"
    if method == "Network.requestWillBeSent":
        url = said["request"]["url"]
        return None if url == page.resolve().as_uri() or url.startswith("data:") else f"request: {url}"
    return None
