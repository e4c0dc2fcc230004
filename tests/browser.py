"""Headless Chromium, driven over its debugging pipe without further packages."""

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
TIMEOUT_S = 60.0
KEY_CODES = {"Tab": 9, "Enter": 13, "Escape": 27}  # needed for the default action of these keys
OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # required to run as root; only pages of the tests are opened
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Browser:
    """One tab at a time. Messages are JSON with a final zero byte, on descriptors 3 and 4."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # Duplicated above 3 and 4, which become the ends of the browser.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_browser, from_browser)]
        arguments = [program, *OPTIONS, f"--user-data-dir={profile}"]
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
        self.events: list[dict[str, Any]] = []  # of the page since it was opened

    def open(
        self,
        url: str,
        width: int = 1440,
        height: int = 960,
        dark: bool = False,
        timer_speed: float = 1.0,
    ) -> None:
        """Load `url` in a new tab; timeouts of the page are divided by `timer_speed`."""
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
        shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **shape)
        if timer_speed != 1.0:
            faster = f"const set = setTimeout; setTimeout = (f, ms) => set(f, ms / {timer_speed});"
            self.send("Page.addScriptToEvaluateOnNewDocument", source=f"{{ {faster} }}")
        self.send("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._record(self._receive())

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; promises are awaited."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, element: str) -> str:
        """Return the text of an element by its id."""
        return str(self.evaluate(f"document.getElementById({json.dumps(element)}).textContent"))

    def press(self, key: str) -> None:
        code = {"windowsVirtualKeyCode": KEY_CODES[key]} if key in KEY_CODES else {}
        character = "\r" if key == "Enter" else key
        text = {"text": character} if len(character) == 1 else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **code)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    def write(self, text: str) -> None:
        """Insert text at the focus."""
        self.send("Input.insertText", text=text)

    def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def errors(self) -> list[str]:
        """Return exceptions and console messages since the page was opened."""
        methods = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(event) for event in self.events if event["method"] in methods]

    def requests(self) -> list[str]:
        """Return the URLs that the page requested since it was opened."""
        sent = [e for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters}
        if self._page:
            message["sessionId"] = self._page["session"]
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._sent:
            self._record(answer)
        assert "error" not in answer, f"{method}: {answer.get('error')}"
        result: dict[str, Any] = answer["result"]
        return result

    def _record(self, event: dict[str, Any]) -> None:
        if event.get("sessionId") == self._page.get("session"):  # not of a closed tab
            self.events.append(event)

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._read], [], [], deadline - time.monotonic())
            assert ready, f"Chromium did not answer within {TIMEOUT_S:g} s"
            part = os.read(self._read, 1 << 20)
            assert part, "Chromium ended unexpectedly"
            self._received += part
        first, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message

    def close(self) -> None:
        os.killpg(self._process, signal.SIGKILL)  # a process group of its own
        os.waitpid(self._process, 0)
        os.close(self._write)
        os.close(self._read)


def chromium() -> str | None:
    """Return the path of the browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def assert_fits(browser: Browser, address: str, width: int, dark: bool) -> None:
    """Open a page in a window of that width and check its scheme, without horizontal scrolling."""
    browser.open(address, width=width, height=1000, dark=dark)
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in ground.strip("rgb()").split(",")) < 200) == dark
    assert browser.errors() == []


def assert_self_contained(browser: Browser, address: str) -> None:
    """Open a page and check that it is ready without errors and requests nothing else."""
    browser.open(address)
    assert browser.evaluate("document.documentElement.dataset.ready") == "yes"
    assert browser.errors() == []
    assert [url for url in browser.requests() if not url.startswith("data:")] == [address]
