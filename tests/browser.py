"""Chromium, driven through its DevTools protocol over a pair of pipes: no driver, no port, no package."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    """The browser's path, if this machine has one."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One headless browser with one page. What goes wrong in the page is in `problems`."""

    def __init__(self, path: str, width: int = 1200, height: int = 900) -> None:
        self.problems: list[str] = []
        self._answers: dict[int, dict[str, Any]] = {}
        self._sent = 0
        self._rest = b""
        self._profile = tempfile.mkdtemp(prefix="detent-browser-")
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        self._in, self._out = ours_in, ours_out
        # The browser reads commands from its descriptor 3 and writes answers to 4. Both ends are moved out of the way
        # first, so that neither of them is overwritten.
        shell = 'exec 8<&"$1" 9>&"$2"; exec 3<&8 4>&9; exec 8<&- 9>&-; shift 2; exec "$@"'
        command = [
            path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
            "--remote-debugging-pipe", f"--user-data-dir={self._profile}", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", shell, "browser", str(theirs_in), str(theirs_out), *command],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.resize(width, height)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._out)
        os.close(self._in)
        self._process.terminate()
        self._process.wait(20)
        shutil.rmtree(self._profile, ignore_errors=True)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._sent += 1
        message: dict[str, Any] = {"id": self._sent, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while self._sent not in self._answers:
            self._receive()
        answer = self._answers.pop(self._sent)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _receive(self) -> None:
        while b"\0" not in self._rest:
            data = os.read(self._in, 1 << 16)
            assert data, "the browser has gone"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        if "id" in message:
            self._answers[message["id"]] = message
            return
        method, params = message["method"], message["params"]
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("file:", "data:")):
            self.problems.append(f"asked the network for {params['request']['url']}")

    def open(self, where: Path | str) -> None:
        self.send("Page.navigate", url=where.as_uri() if isinstance(where, Path) else where)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, script: str, seconds: float = 20.0) -> Any:
        """Until an expression is true."""
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"waited in vain for {script}; problems: {self.problems}"
            time.sleep(0.05)
        return value

    def choose(self, name: str, value: str) -> None:
        """Set a control of the page as a person would."""
        self.run(
            f"(e => {{ e.value = {json.dumps(value)}; e.dispatchEvent(new Event(e.tagName === 'SELECT' ? 'change' : "
            f"'input', {{bubbles: true}})); }})(document.getElementById({json.dumps(name)}))"
        )

    def resize(self, width: int, height: int) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name: str) -> None:
        """`light` or `dark`."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, path: Path, whole: bool = False) -> None:
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))
