"""The console in Chromium, over simulated systems, and once over the real gateway."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from loadmaster.envs.settings import build_settings
from loadmaster.serving.client import Client
from loadmaster.serving.http.app_factory import assemble
from loadmaster.serving.http.body import HttpError
from loadmaster.serving.settings import ServeSettings
from loadmaster.serving.worker.worker import SystemWorker
from tests.browser import Browser
from tests.serving import toy
from tests.serving.console.fake_service import FakeService, HttpServer, Json

pytestmark = pytest.mark.slow

TIMEOUT_S = 12.0
TIMER_SPEED = 4.0  # the console polls every two seconds
READY = "document.documentElement.dataset.ready === 'yes'"
READ, ADMIN = "the-token-for-reading", "the-token-for-admins"
HOSTILE = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
STALE = "'stale' in document.body.dataset"


def text_of(element: str) -> str:
    return f"document.getElementById({json.dumps(element)}).textContent"


BANNER = f"!document.getElementById('banner').hidden && {text_of('banner-text')}"


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


@pytest.fixture
def service() -> Iterator[FakeService]:
    service = FakeService()
    yield service
    service.stop()


@pytest.fixture
def console(browser: Browser, service: FakeService) -> Console:
    return Console(browser, service.base)


def test_decision_is_explained(browser: Browser, service: FakeService, console: Console) -> None:
    newest = console.newest_decision(other_than=console.newest_decision())
    text = console.expand(newest)
    decision = next(d for d in service.systems["decima"].decided if d["id"] == newest)
    assert decision["reason"]["summary"] in text
    choices = [c for group in decision["reason"]["choices"].values() for c in group]
    assert all(choice["name"] in text for choice in choices)
    bars = "document.querySelectorAll('.details:not([hidden]) .choice-bar .bar')"
    widths = browser.evaluate(f"[...{bars}].map((bar) => Number(bar.getAttribute('width')))")
    assert widths == pytest.approx([max(0.4, 100 * c["probability"]) for c in choices])
    # While a decision is expanded the list is not updated.
    newer = "document.getElementById('feed-newer')"
    assert "newer" in console.wait_for(f"!{newer}.hidden && {newer}.textContent")
    assert console.newest_decision() == newest
    browser.press("Escape")
    console.newest_decision(other_than=newest)
    assert browser.errors() == []
    assert all(url.startswith((service.base, "data:")) for url in browser.requests())


def test_status_is_shown(browser: Browser, service: FakeService, console: Console) -> None:
    status = service.systems["decima"].fields
    assert browser.text("headline") == "The policy decides: my-serving"
    assert browser.text("reason") == status["acting_because"]
    policies = browser.text("policies")
    for policy in status["policies"].values():
        assert policy["name"] in policies
        assert policy["version"] in policies
    assert all(cause in browser.text("causes") for cause in status["decisions"]["by_cause"])
    assert browser.evaluate("document.getElementById('steering').hidden")
    status["steering"] = {
        "engine": "spark", "mode": "act", "result": "acted", "line": "limit <b>7</b> to 3",
        "time": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    console.wait_for_text("steering", "spark in mode act: acted")
    assert "limit <b>7</b> to 3" in browser.text("steering")
    lengths = browser.evaluate(
        "[...document.querySelectorAll('#plots .line')].map((l) => l.getAttribute('d').length)"
    )
    assert len(lengths) == 4
    assert min(lengths) > 500
    titles = browser.evaluate("[...document.querySelectorAll('time')].map((t) => t.title)")
    assert {title[-4:] for title in titles} == {" UTC"}

    browser.evaluate("document.querySelectorAll('[role=tab]')[1].click()")
    console.wait_for_text("name", "das")
    console.newest_decision()
    assert browser.text("headline") == "The rule decides, not the policy: las-consolidate"
    assert browser.evaluate("document.getElementById('state').dataset.source") == "rule"
    assert "rule decides" in browser.evaluate("document.title")
    assert browser.evaluate("document.querySelectorAll('#plots .diamond').length") == 1
    assert "retrain-das-0007" in browser.text("retraining")
    note = browser.text("lifecycle-note")
    for part in (
        "too few rewards",
        "at least \N{MINUS SIGN}16.5",
        "fqe, 80 episodes",
        "high stakes",
    ):
        assert part in note
    assert "RUNNING" in browser.text("retraining")
    assert "queue" in browser.text("drift")
    service.systems["das"].fields["acting"] = "policy"
    console.wait_for_tag("policy")
    console.expand(console.newest_decision())
    whiskers = "document.querySelectorAll('.details:not([hidden]) .choice-bar .whisker').length"
    assert browser.evaluate(whiskers) == 3  # uncertain scores
    assert browser.errors() == []


def test_names_with_markup_stay_text(browser: Browser, service: FakeService) -> None:
    system = service.systems.pop("decima")
    draw = system.draw

    def hostile(n: int) -> tuple[Json, Json]:
        choices = {HOSTILE: [{**c, "name": HOSTILE} for c in draw(n)[1]["choices"]["job"]]}
        return {"job": HOSTILE, HOSTILE: [HOSTILE]}, {"summary": HOSTILE, "choices": choices}

    system.draw = hostile
    name = HOSTILE.replace("/", "")  # a slash would be another route
    fields = system.fields
    fields |= {"system": name, "rule": HOSTILE, "summary": HOSTILE}
    fields["policies"]["serving"]["name"] = fields["policies"]["shadow"]["name"] = HOSTILE
    fields["guard"][HOSTILE] = fields["decisions"]["by_cause"][HOSTILE] = 3
    fields["drift"]["inputs"][HOSTILE] = {"count": 1, "last": None, "mean": None}
    fields["lifecycle"]["why"] = fields["log"]["fault"] = HOSTILE
    service.systems.clear()
    service.systems[name] = system
    console = Console(browser, service.base)
    first = "document.querySelector('#decisions > li .row-decision').textContent"
    console.wait_for(f"{first}.includes({json.dumps(HOSTILE)})")
    assert HOSTILE in console.expand(console.newest_decision())
    for panel in ("headline", "policies", "guard", "causes", "drift", "log"):
        assert HOSTILE in browser.text(panel)
    assert name in browser.text("systems")
    console.pause(HOSTILE)
    assert browser.evaluate("document.querySelectorAll('img, body script').length") == 1
    assert browser.evaluate("document.title") != "run"
    assert browser.errors() == []


def test_keyboard_reaches_everything(browser: Browser, console: Console) -> None:
    browser.press("?")
    console.wait_for("document.getElementById('help-dialog').open")
    browser.press("p")  # shortcuts are inactive while a dialog is open
    assert not browser.evaluate("document.getElementById('action-dialog').open")
    browser.press("Escape")
    console.wait_for("!document.getElementById('help-dialog').open")

    for key, system in (("2", "das"), ("1", "decima")):
        browser.press(key)
        console.wait_for_text("name", system)
    console.newest_decision()
    browser.press("j")
    expanded = "document.activeElement.getAttribute('aria-expanded')"
    assert browser.evaluate(expanded) == "false"
    browser.press("Enter")
    assert browser.evaluate(expanded) == "true"

    browser.press("p")
    console.wait_for("document.activeElement.id === 'action-reason'")
    browser.write("by hand")
    browser.press("Enter")
    console.wait_for_text("reason", "by hand")
    assert browser.errors() == []

    browser.evaluate("document.querySelector('.skip').focus()")
    reached = []
    for _ in range(12):
        browser.press("Tab")
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert browser.evaluate(outline) != "none"
        reached.append(browser.evaluate("document.activeElement.id"))
    wanted = ["token-button", "theme-button", "help-button", "resume", "promote", "rollback"]
    assert [each for each in reached if each in [*wanted, "charts"]] == [*wanted, "charts"]


def test_token_dialog_can_be_opened_again_at_once(browser: Browser, console: Console) -> None:
    """The browser reports the first closing after the second opening."""
    browser.evaluate(
        """{
          const press = (id) => document.getElementById(id).click();
          press("token-button");
          const dialog = document.getElementById("token-dialog");
          dialog.addEventListener("close", () => (globalThis.reported = true));
          document.querySelector("#token-dialog [data-close]").click();
          press("token-button");
          document.getElementById("token-field").value = "typed";
        }"""
    )
    console.wait_for("globalThis.reported")
    assert browser.evaluate("document.getElementById('token-field').value") == "typed"
    browser.press("Escape")
    console.wait_for("document.getElementById('token-field').value === ''")


def test_theme_follows_the_browser_unless_chosen(browser: Browser, service: FakeService) -> None:
    Console(browser, service.base)
    light = browser.evaluate(BACKGROUND)
    Console(browser, service.base, dark=True)
    dark = browser.evaluate(BACKGROUND)
    assert (light, dark) == ("rgb(245, 245, 242)", "rgb(16, 18, 23)")
    for theme, expected in (("light", light), ("dark", dark), ("auto", dark)):
        browser.press("d")
        assert browser.text("theme-button") == f"theme: {theme}"
        assert browser.evaluate(BACKGROUND) == expected


def test_hidden_tab_does_not_poll(browser: Browser, console: Console) -> None:
    def set_hidden(hidden: str) -> None:
        value = f"{{ configurable: true, value: {hidden} }}"
        browser.evaluate(f"Object.defineProperty(document, 'hidden', {value})")
        browser.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    set_hidden("true")
    console.wait_for_text("connection", "paused while hidden")
    requests = len(browser.requests())
    time.sleep(2.3 / TIMER_SPEED)  # more than one polling interval
    browser.evaluate("0")
    assert len(browser.requests()) == requests
    set_hidden("false")
    console.wait_for_text("connection", "live")
    assert len(browser.requests()) > requests


def test_no_horizontal_scrolling_at_any_width(browser: Browser, console: Console) -> None:
    console.expand(console.newest_decision())
    for width in (360, 640, 820, 1180, 1920):
        shape = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.send("Emulation.setDeviceMetricsOverride", **shape)
        console.wait_for(f"innerWidth === {width}")
        assert browser.evaluate("document.documentElement.scrollWidth") == width


def test_lost_connection_is_shown(browser: Browser, service: FakeService, console: Console) -> None:
    refusal = HttpError(429, "too many requests", headers={"Retry-After": "3"})
    with mock.patch.object(service.access, "admit", side_effect=refusal):
        banner = console.wait_for(BANNER)
    assert "too many requests" in banner
    assert "in 3" in banner  # from Retry-After
    assert not browser.evaluate(STALE)
    console.wait_for("document.getElementById('banner').hidden")

    shown = browser.text("decisions")
    service.stop()
    console.wait_for(f"{STALE} && {BANNER}.startsWith('The service does not respond.')")
    assert len(browser.text("decisions")) >= len(shown) // 2  # the last data stay
    assert console.is_disabled("pause")
    service.start()
    console.wait_for(f"!({STALE}) && document.getElementById('banner').hidden")
    assert not console.is_disabled("pause")


def test_operator_of_a_real_service(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens, pause, resume, promotion and rollback; gateway and worker are in this process."""
    monkeypatch.setenv("LOADMASTER_TOKENS", f"read {READ}, admin {ADMIN}")
    bundle = str(toy.make_bundle(tmp_path / "bundle"))
    system = {"endpoint": toy.REFERENCE, "bundle": bundle, "deadline_ms": 20_000}
    settings = {"systems": {"toy": system}, "folder": tmp_path / "kept", "listen": False}
    worker = SystemWorker("toy", toy.REFERENCE, "hold", bundle)
    server = HttpServer(assemble(build_settings(ServeSettings, settings), {"toy": worker}).app)
    client = Client(server.base, token=ADMIN, deadline_s=30)

    console = Console(browser, server.base, ready=False)
    assert "no valid token" in console.wait_for(BANNER)
    console.enter_token("wrong")
    console.wait_for("!document.getElementById('banner-token').hidden")
    console.enter_token(READ)
    console.wait_for(READY)
    assert "admin token" in browser.text("actions-note")
    assert browser.text("decisions-total") == "0"
    assert browser.text("fallback-rate") == browser.text("shadow-agreement") == "\N{EN DASH}"
    assert browser.text("feed-empty") == "No decisions yet."

    state = client.example("toy", "small")
    while (first := client.decide("toy", state)).source != "policy":  # the worker is starting
        assert first.cause == "worker down"
    console.wait_for(f"document.querySelector('#decisions > li')?.dataset.id === '{first.id}'")
    text = console.expand(first.id)
    assert first.reason.summary in text
    assert first.reason.choices["to"][0].name in text
    browser.press("Escape")
    assert console.is_disabled("pause")
    console.enter_token(ADMIN)
    console.pause("the cluster is being upgraded")
    paused = client.decide("toy", state)
    assert (paused.source, paused.cause) == ("fallback", "paused")
    browser.press("Escape")
    console.wait_for_tag("rule: paused")
    assert "paused" in browser.evaluate("document.querySelector('[role=tab]').textContent")
    assert "rule decides" in browser.text("announcement")  # for screen readers
    console.act("resume")
    console.wait_for("document.getElementById('resume').hidden")
    assert client.decide("toy", state).source == "policy"

    client.decide("toy", state, tenant="other")
    browser.evaluate(
        "document.getElementById('tenant').value = 'other';"
        "document.getElementById('tenant').dispatchEvent(new Event('change'))"
    )
    listed = "document.querySelectorAll('#decisions > li').length"
    console.wait_for(f"location.hash === '#toy/other' && {listed} === 1")
    options = "[...document.querySelectorAll('#tenant-list option')].map((one) => one.value)"
    assert console.wait_for(f"{options}.length === 2 && {options}") == ["default", "other"]
    console.pause("only this one")
    assert [client.decide("toy", state, tenant=name).cause for name in ("other", None)] == [
        "paused",
        None,
    ]
    console.act("resume")
    browser.evaluate("location.hash = '#toy'")
    console.wait_for(f"{listed} > 1")

    assert console.is_disabled("promote")  # there is no shadow policy
    better = str(toy.make_bundle(tmp_path / "better", "better"))
    client.promote("toy", better, to="shadow")
    console.act("promote")
    console.wait_for_text("headline", ": better")
    console.act("rollback")
    console.wait_for_text("headline", ": toy")
    client.promote("toy", better, to="shadow")
    console.wait_for("!document.getElementById('promote').disabled")
    console.click("promote")
    client.promote("toy")  # somebody else is faster
    browser.press("Enter")  # the submit button has the focus
    assert "shadow" in console.wait_for(text_of("action-error"))
    assert browser.evaluate("localStorage.getItem('loadmaster.token')") is None
    assert all("token" not in url for url in browser.requests())
    client.close()
    server.stop()
