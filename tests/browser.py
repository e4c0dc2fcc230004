"""A headless Chromium, driven over its debugging pipe: nothing to install but the browser."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_S = 60.0
CODES = {"Tab": 9, "Enter": 13, "Escape": 27}  # without them the browser takes no default action


class Browser:
    """One page at a time. Messages are JSON with a zero byte at the end, on descriptors 3 and 4."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # Out of the way of 3 and 4, which the browser's ends become.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_browser, from_browser)]
        arguments = [
            program,
            "--headless=new",
            "--no-sandbox",  # it will not run as root otherwise, and opens our own pages alone
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--no-first-run",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        ]
        quiet = [(os.POSIX_SPAWN_OPEN, n, os.devnull, os.O_WRONLY, 0) for n in (1, 2)]
        pipes = [(os.POSIX_SPAWN_DUP2, end, n) for end, n in zip(ends, (3, 4), strict=True)]
        self._process = os.posix_spawn(
            program, arguments, os.environ, file_actions=[*quiet, *pipes], setpgroup=0
        )
        for end in (to_browser, from_browser, *ends):
            os.close(end)
        self._received = b""
        self._sent = 0
        self._page: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []  # what the page did since it was opened

    def open(
        self,
        url: str,
        width: int = 1440,
        height: int = 960,
        dark: bool = False,
        haste: float = 1.0,
    ) -> None:
        """A fresh tab on `url`, loaded. What it sets a timer for comes so many times sooner."""
        previous, self._page = self._page, {}
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        if previous:
            self.send("Target.closeTarget", targetId=previous["target"])
        self._page = {"target": target, "session": session}
        self.events = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        if haste != 1.0:
            later = f"const later = setTimeout; setTimeout = (f, ms) => later(f, ms / {haste});"
            self.send("Page.addScriptToEvaluateOnNewDocument", source=f"{{ {later} }}")
        self.send("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._note(self._receive())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; a promise is waited for."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, element: str) -> str:
        """What an element says, by its id."""
        return str(self.evaluate(f"document.getElementById({json.dumps(element)}).textContent"))

    def press(self, key: str) -> None:
        code = {"windowsVirtualKeyCode": CODES[key]} if key in CODES else {}
        for kind in ("keyDown", "keyUp"):
            written = "\r" if key == "Enter" else key
            letter = {"text": written} if kind == "keyDown" and len(written) == 1 else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, **letter, **code)

    def write(self, text: str) -> None:
        """Into whatever has the focus, as a keyboard would."""
        self.send("Input.insertText", text=text)

    def picture(self, file: Path) -> None:
        """The page as it looks now, as PNG."""
        file.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def faults(self) -> list[str]:
        """Exceptions and console messages since the page was opened."""
        loud = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(event) for event in self.events if event["method"] in loud]

    def requests(self) -> list[str]:
        """Addresses the page asked for since it was opened."""
        sent = [e for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser something, and wait for the answer."""
        self._sent += 1
        message: dict[str, Any] = {"id": self._sent, "method": method, "params": parameters}
        if self._page:
            message["sessionId"] = self._page["session"]
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._sent:
            self._note(answer)
        assert "error" not in answer, f"{method}: {answer.get('error')}"
        result: dict[str, Any] = answer["result"]
        return result

    def _note(self, event: dict[str, Any]) -> None:
        """What a page before did as it was closed is not this one's."""
        if event.get("sessionId") == self._page.get("session"):
            self.events.append(event)

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._read], [], [], deadline - time.monotonic())
            assert ready, f"Chromium did not answer within {PATIENCE_S:g} s"
            part = os.read(self._read, 1 << 20)
            assert part, "Chromium ended unexpectedly"
            self._received += part
        first, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message

    def close(self) -> None:
        os.killpg(self._process, signal.SIGKILL)  # a group of its own: its helpers go with it
        os.waitpid(self._process, 0)
        os.close(self._write)
        os.close(self._read)


def chromium() -> str | None:
    """Where the browser is, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)
