"""The console in a browser, driven as an operator would, for any service."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.browser import Browser

TIMEOUT_S = 12.0
TIMER_SPEED = 4.0  # the console polls every two seconds
READY = "document.documentElement.dataset.ready === 'yes'"


def text_of(element: str) -> str:
    return f"document.getElementById({json.dumps(element)}).textContent"


class Console:
    def __init__(self, browser: Browser, base: str, *, ready: bool = True, **options: Any) -> None:
        """Open the console in a new tab, and wait for its data if `ready`."""
        self.browser = browser
        browser.open(f"{base}/console", timer_speed=TIMER_SPEED, **options)
        if ready:
            self.wait_for(READY)

    def wait_for(self, condition: str) -> Any:
        """Return the value of a JavaScript expression once it is true."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (value := self.browser.evaluate(condition)):
            page = self.browser.evaluate("document.body.innerText.slice(0, 600)")
            assert time.monotonic() < deadline, f"never true: {condition}\n{page}"
            time.sleep(0.05)
        return value

    def wait_for_text(self, element: str, text: str) -> None:
        self.wait_for(f"{text_of(element)}.includes({json.dumps(text)})")

    def click(self, element: str) -> None:
        self.browser.evaluate(f"document.getElementById({json.dumps(element)}).click()")

    def is_disabled(self, button: str) -> bool:
        return bool(self.browser.evaluate(f"document.getElementById('{button}').disabled"))

    def newest_decision(self, other_than: str = "") -> str:
        first = "document.querySelector('#decisions > li')?.dataset.id"
        return str(self.wait_for(f"{first} !== {json.dumps(other_than)} && {first}"))

    def wait_for_tag(self, tag: str) -> None:
        """Wait until the newest decision has this tag first."""
        first = "document.querySelector('#decisions > li .tag').textContent"
        self.wait_for(f"{first} === {json.dumps(tag)}")

    def expand(self, decision: str) -> str:
        """Expand a decision and return its text."""
        entries = "[...document.querySelectorAll('#decisions > li')]"
        entry = f"{entries}.find((each) => each.dataset.id === {json.dumps(decision)})"
        self.browser.evaluate(f"{entry}.querySelector('.row').click()")
        return str(self.wait_for(f"!{entry}.querySelector('.details').hidden && {entry}.innerText"))

    def act(self, action: str, reason: str = "") -> None:
        """Press one of the buttons, enter the reason, and confirm."""
        self.wait_for(f"!document.getElementById('{action}').disabled")
        self.click(action)
        self.wait_for("document.getElementById('action-dialog').open")
        if reason:
            assert self.browser.evaluate("document.activeElement.id") == "action-reason"
            self.browser.write(reason)
        self.click("action-submit")
        self.wait_for("!document.getElementById('action-dialog').open")

    def pause(self, reason: str) -> None:
        self.act("pause", reason)
        self.wait_for_text("headline", "Paused")
        self.wait_for_text("reason", reason)

    def enter_token(self, token: str) -> None:
        self.click("token-button")
        self.wait_for("document.activeElement.id === 'token-field'")
        self.browser.write(token)
        self.browser.press("Enter")
        self.wait_for("!document.getElementById('token-dialog').open")
