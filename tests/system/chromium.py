"""A real Chromium without a window, spoken to over its DevTools protocol on two pipes.

`--remote-debugging-pipe` takes JSON messages that end in a zero byte on descriptor 3 and answers on
descriptor 4 (https://chromedevtools.github.io/devtools-protocol), so no WebSocket is needed. The
accessibility checker axe-core comes in a package of its own lock (envs/axe.lock), fetched once;
nothing of it is installed.
"""

import hashlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.programs import ran

PROGRAM = shutil.which("chromium")
SECONDS = 60
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --disable-dev-shm-usage "
    "--hide-scrollbars --remote-debugging-pipe"
).split()
ROOT = Path(__file__).parents[2]
LOCK = ROOT / "envs" / "axe.lock"
MEMBER = "axe_playwright_python/axe.min.js"
# Everything that axe has but its experimental rules.
_RUN_AXE = """axe.run(document, {resultTypes: ["violations"]}).then(found => ({
    version: axe.version, rules: found.passes.length,
    violations: found.violations.map(one => [one.id, one.impact, one.nodes.length,
        one.nodes[0].html.slice(0, 160), one.nodes[0].failureSummary.slice(0, 300)]),
    unsure: found.incomplete.map(one => [one.id, one.nodes.length,
        one.nodes[0].html.slice(0, 160), one.nodes[0].any.map(why => why.message).join("; ")])}))"""


class Page:
    """One tab: what it asked for, what went wrong in it, and what a script in it answers."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._out, self._in = to_browser, from_browser
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and wait for its answer; raises AssertionError where it is refused."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"Chromium said nothing for {SECONDS} s"
            read = os.read(self._in, 2**16)
            assert read, "Chromium went away"
            self._buffer += read
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    def size(self, width: int, height: int = 900) -> None:
        """The size of the window, in pixels of the page."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def open(self, path: Path) -> None:
        """Load a file and wait until all of it is there."""
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(e["method"] == "Page.loadEventFired" for e in self.events):
            self._receive()

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page, awaited if it is a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Every error and warning of the console so far, uncaught exceptions included."""
        found = []
        for event in self.events:
            method, params = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
                found.append(str(params["args"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(str(params["entry"]["text"]))
        return found

    def requests(self) -> list[str]:
        """Every address that the page asked for, in their order."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]


@contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """A Chromium with a new profile folder, ended on leaving; `PROGRAM` must be there."""
    assert PROGRAM is not None
    to_browser, from_browser = os.pipe(), os.pipe()
    # The browser wants exactly 3 and 4, which may be taken here, so a shell moves them there.
    moved = f'exec "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}'
    command = ["bash", "-c", moved, "chromium", PROGRAM, *_FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        command, pass_fds=(to_browser[0], from_browser[1]), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(to_browser[0])
    os.close(from_browser[1])
    try:
        page = Page(to_browser[1], from_browser[0])
        yield page
        page._session = ""
        page.call("Browser.close")
    finally:
        os.close(to_browser[1])
        os.close(from_browser[0])
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def axe_source() -> str:
    """The text of axe.min.js; raises RuntimeError with pip's last line where it cannot be had."""
    key = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    final = ROOT / ".cache" / f"axe-{key}.js"
    if not final.is_file():
        final.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=final.parent) as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--require-hashes", "--requirement", str(LOCK), "--dest", folder]
            done = ran(command, timeout=300)
            if done.returncode:
                lines = done.stderr.strip().splitlines() or ["pip said nothing"]
                raise RuntimeError(f"axe-core could not be fetched: {lines[-1]}")
            [wheel] = Path(folder).glob("*.whl")
            written = Path(folder) / "axe.js"
            written.write_bytes(zipfile.ZipFile(wheel).read(MEMBER))
            written.rename(final)
    return final.read_text(encoding="utf-8")


def axe_findings(page: Page, script: str) -> dict[str, Any]:
    """Findings of axe on the page as it is shown: violations, and what it could not decide.

    The script comes through the debugger, which the page's own policy does not forbid.
    """
    page.evaluate(f"{script};null")
    found = page.evaluate(_RUN_AXE)
    assert isinstance(found, dict)
    return found
