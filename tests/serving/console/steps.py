"""What a person does on the console, as functions: the same for any service at any address."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.browser import Browser

PATIENCE_S = 12.0
HASTE = 4.0  # the console asks every two seconds


def wait_for(browser: Browser, condition: str) -> Any:
    """The value of a JavaScript expression, once it is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := browser.evaluate(condition)):
        told = browser.evaluate("document.body.innerText.slice(0, 600)")
        assert time.monotonic() < deadline, f"never true: {condition}\n{told}"
        time.sleep(0.05)
    return value


def said_by(element: str) -> str:
    return f"document.getElementById({json.dumps(element)}).textContent"


def open_console(browser: Browser, base: str, **options: Any) -> None:
    """A fresh tab on the console, with its first picture."""
    load_console(browser, base, **options)
    wait_for(browser, "document.documentElement.dataset.ready === 'yes'")


def load_console(browser: Browser, base: str, **options: Any) -> None:
    """The page alone: it may not be let in yet."""
    browser.open(f"{base}/console", haste=HASTE, **options)


def choose(browser: Browser, system: str) -> None:
    """Another system, by its tab."""
    browser.evaluate(
        "[...document.querySelectorAll('[role=tab]')]"
        f".find((tab) => tab.querySelector('b').textContent === {json.dumps(system)}).click()"
    )
    wait_for(browser, f"{said_by('name')} === {json.dumps(system)}")
    wait_for(browser, "document.querySelectorAll('#decisions > li').length > 0")


def newest(browser: Browser) -> str:
    """The id of the decision at the top."""
    return str(wait_for(browser, "document.querySelector('#decisions > li')?.dataset.id"))


def wait_for_newer(browser: Browser, than: str) -> str:
    top = "document.querySelector('#decisions > li')?.dataset.id"
    return str(wait_for(browser, f"{top} !== {json.dumps(than)} && {top}"))


def expand(browser: Browser, decision: str) -> str:
    """Open a decision; what it then tells."""
    entries = "[...document.querySelectorAll('#decisions > li')]"
    entry = f"{entries}.find((each) => each.dataset.id === {json.dumps(decision)})"
    browser.evaluate(f"{entry}.querySelector('.row').click()")
    return str(wait_for(browser, f"!{entry}.querySelector('.more').hidden && {entry}.innerText"))


def act(browser: Browser, action: str, reason: str = "") -> None:
    """Press one of the buttons, give a reason where one is asked for, and confirm."""
    wait_for(browser, f"!document.getElementById('{action}').disabled")
    browser.evaluate(f"document.getElementById('{action}').click()")
    wait_for(browser, "document.getElementById('action-dialog').open")
    if reason:
        assert browser.evaluate("document.activeElement.id") == "action-reason"
        browser.write(reason)
    browser.evaluate("document.getElementById('action-go').click()")


def act_and_see_it_done(browser: Browser, action: str, reason: str = "") -> None:
    act(browser, action, reason)
    wait_for(browser, "!document.getElementById('action-dialog').open")


def pause(browser: Browser, reason: str) -> None:
    """Pause, and see on the page that the rule acts, and why."""
    act_and_see_it_done(browser, "pause", reason)
    wait_for(browser, f"{said_by('headline')}.startsWith('Paused: the rule acts')")
    wait_for(browser, f"{said_by('because')}.includes({json.dumps(reason)})")


def resume(browser: Browser) -> None:
    act_and_see_it_done(browser, "resume")
    wait_for(browser, "document.getElementById('resume').hidden")


def wait_for_fallback(browser: Browser, cause: str) -> None:
    """A decision of the rule at the top of the list, for that cause."""
    tag = "document.querySelector('#decisions > li .tag').textContent"
    wait_for(browser, f"{tag} === {json.dumps(f'rule: {cause}')}")


def enter_token(browser: Browser, token: str) -> None:
    browser.evaluate("document.getElementById('token-button').click()")
    wait_for(browser, "document.activeElement.id === 'token-field'")
    browser.write(token)
    browser.press("Enter")
    wait_for(browser, "!document.getElementById('token-dialog').open")
