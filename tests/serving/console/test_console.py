"""The console in a real browser, over a made-up service."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from tests.serving.console import steps
from tests.serving.console.fake_service import FakeService, Running
from tests.serving.console.made_up import Json, MadeUp, decima_decision

if TYPE_CHECKING:
    from tests.browser import Browser

TOKENS = {"the-admin-token": "admin", "the-read-token": "read"}
HOSTILE = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
GREYED = "'stale' in document.body.dataset"
BANNER = f"!document.getElementById('banner').hidden && {steps.said_by('banner-text')}"

Start = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[Running] = []

    def begin(tokens: Mapping[str, str] | None = None) -> Running:
        running.append(Running(FakeService(tokens)))
        return running[-1]

    yield begin
    for each in running:
        each.stop()


def background(browser: Browser) -> str:
    return str(browser.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_a_live_decision_with_its_reason(browser: Browser, start: Start) -> None:
    served = start()
    steps.open_console(browser, served.base)
    seen = steps.newest(browser)
    seen = steps.wait_for_newer(browser, seen)
    told = steps.expand(browser, seen)
    decision = next(d for d in served.service.systems["decima"].decisions if d["id"] == seen)
    assert decision["reason"]["summary"] in told
    for name in ("stage", "limit"):
        for choice in decision["reason"]["choices"].get(name, []):
            assert choice["name"] in told
    bars = "document.querySelectorAll('.more:not([hidden]) .choice-bar .bar')"
    widths = browser.evaluate(f"[...{bars}].map((bar) => Number(bar.getAttribute('width')))")
    chances = [c["probability"] for group in decision["reason"]["choices"].values() for c in group]
    assert widths == pytest.approx([max(0.4, 100 * each) for each in chances])
    # While it is open the list stands still, and says what it holds back.
    newer = "document.getElementById('feed-newer')"
    assert "newer" in steps.wait_for(browser, f"!{newer}.hidden && {newer}.textContent")
    assert steps.newest(browser) == seen
    browser.press("Escape")
    steps.wait_for_newer(browser, seen)
    assert browser.faults() == []
    assert all(url.startswith((served.base, "data:")) for url in browser.requests()), (
        browser.requests()
    )


def test_what_it_tells_of_a_system(browser: Browser, start: Start) -> None:
    served = start()
    steps.open_console(browser, served.base)
    status = served.service.systems["decima"].status()
    assert browser.text("headline") == "The policy acts: decima-small"
    policies = browser.text("policies")
    for role in ("serving", "shadow", "previous"):
        assert status["policies"][role]["name"] in policies
        assert status["policies"][role]["version"] in policies
    assert browser.text("because") == status["acting_because"]
    causes = browser.text("causes")
    assert all(cause in causes for cause in status["decisions"]["by_cause"])
    marks = browser.evaluate(
        "[...document.querySelectorAll('#plots .line')].map((l) => l.getAttribute('d').length)"
    )
    assert len(marks) == 4
    assert min(marks) > 500
    titles = browser.evaluate("[...document.querySelectorAll('time')].map((t) => t.title)")
    assert titles
    assert all(title.endswith(" UTC") for title in titles)

    steps.choose(browser, "das")
    assert browser.text("headline") == "The rule acts, not the policy: las-consolidate"
    assert browser.evaluate("document.getElementById('acting').dataset.acting") == "rule"
    assert browser.evaluate("document.title").startswith("▲ rule acts")
    assert browser.evaluate("document.querySelectorAll('#plots .diamond').length") == 1
    assert "retrain-das-0007" in browser.text("retraining")
    assert "RUNNING" in browser.text("retraining")
    assert "queue" in browser.text("drift")
    assert browser.faults() == []


def test_whiskers_stand_for_uncertainty(browser: Browser, start: Start) -> None:
    served = start()
    served.service.systems["das"].lifecycle["state"] = "SERVING"
    steps.open_console(browser, served.base)
    steps.choose(browser, "das")
    tag = "document.querySelector('#decisions > li .tag').textContent"
    steps.wait_for(browser, f"{tag} === 'policy'")
    steps.expand(browser, steps.newest(browser))
    counted = "document.querySelectorAll('.more:not([hidden]) .choice-bar .whisker').length"
    assert browser.evaluate(counted) == 10


def test_pause_and_resume(browser: Browser, start: Start) -> None:
    served = start()
    steps.open_console(browser, served.base)
    steps.pause(browser, "limits look strange")
    assert served.service.posted == [("decima", "pause", {"reason": "limits look strange"})]
    steps.wait_for_fallback(browser, "paused")
    assert "paused" in browser.evaluate("document.querySelector('[role=tab]').textContent")
    assert "the rule acts" in browser.text("said")  # told to those who listen, too
    steps.resume(browser)
    steps.wait_for(
        browser, "document.querySelector('#decisions > li .tag').textContent === 'policy'"
    )
    assert browser.faults() == []


def test_promote_needs_an_admin_token(browser: Browser, start: Start) -> None:
    served = start(TOKENS)
    steps.load_console(browser, served.base)
    assert "no valid token was sent" in steps.wait_for(browser, BANNER)
    steps.enter_token(browser, "wrong")
    steps.wait_for(browser, "!document.getElementById('banner-token').hidden")
    steps.enter_token(browser, "the-read-token")
    steps.wait_for(browser, "document.documentElement.dataset.ready === 'yes'")
    assert browser.evaluate("document.getElementById('promote').disabled")
    assert "need an admin token" in browser.text("needs")

    steps.enter_token(browser, "the-admin-token")
    steps.act_and_see_it_done(browser, "promote")
    steps.wait_for(browser, f"{steps.said_by('headline')} === 'The policy acts: decima-tpch-2'")
    steps.wait_for(browser, "document.getElementById('promote').disabled")  # nothing in shadow now
    steps.act_and_see_it_done(browser, "rollback")
    steps.wait_for(browser, f"{steps.said_by('headline')} === 'The policy acts: decima-small'")
    assert [verb for _, verb, _ in served.service.posted] == ["promote", "rollback"]
    assert browser.evaluate("localStorage.getItem('loadmaster.token')") is None
    assert all("token" not in url for url in browser.requests())


def test_a_refusal_is_shown_in_the_services_words(browser: Browser, start: Start) -> None:
    served = start()
    steps.open_console(browser, served.base)
    browser.evaluate("document.getElementById('promote').click()")
    served.service.systems["decima"].policies["shadow"] = None  # somebody else was faster
    browser.press("Enter")  # the button to confirm has the focus
    fault = steps.said_by("action-fault")
    assert steps.wait_for(browser, fault) == "nothing to promote: no bundle is in shadow"
    browser.press("Escape")
    steps.wait_for(browser, "!document.getElementById('action-dialog').open")


def test_hostile_names_are_text(browser: Browser, start: Start) -> None:
    served = start()
    made = served.service.systems["decima"]
    plain = made.draw

    def hostile(*given: object) -> tuple[Json, Json]:
        _, reason = plain(*given)  # type: ignore[arg-type]
        choices = {HOSTILE: [{**c, "name": HOSTILE} for c in reason["choices"]["stage"]]}
        return {"job": HOSTILE, HOSTILE: [HOSTILE]}, {"summary": HOSTILE, "choices": choices}

    made.draw = hostile
    made.rule = made.summary = HOSTILE
    made.system = HOSTILE.replace("/", "")  # a slash would be another route
    made.policies["serving"]["name"] = made.policies["shadow"]["name"] = HOSTILE
    made.guard[HOSTILE] = made.by_cause[HOSTILE] = 3
    made.drift["inputs"][HOSTILE] = {"count": 1, "last": None, "mean": None}
    made.lifecycle["why"] = made.log["fault"] = HOSTILE
    served.service.systems = {made.system: made}
    steps.open_console(browser, served.base)
    top = "document.querySelector('#decisions > li .row-what').textContent"
    steps.wait_for(browser, f"{top}.includes({json.dumps(HOSTILE)})")
    assert HOSTILE in steps.expand(browser, steps.newest(browser))
    for panel in ("headline", "policies", "guard", "causes", "drift", "log"):
        assert HOSTILE in browser.text(panel)
    assert made.system in browser.text("systems")
    steps.pause(browser, HOSTILE)
    assert browser.evaluate("document.querySelectorAll('img, body script').length") == 1
    assert browser.evaluate("document.title") != "run"
    assert browser.faults() == []


def test_the_keyboard_alone_is_enough(browser: Browser, start: Start) -> None:
    served = start()
    steps.open_console(browser, served.base)
    browser.press("?")
    steps.wait_for(browser, "document.getElementById('help-dialog').open")
    browser.press("p")  # no shortcut works under a dialog
    assert not browser.evaluate("document.getElementById('action-dialog').open")
    browser.press("Escape")
    steps.wait_for(browser, "!document.getElementById('help-dialog').open")

    browser.press("2")
    steps.wait_for(browser, f"{steps.said_by('name')} === 'das'")
    browser.press("1")
    steps.wait_for(browser, f"{steps.said_by('name')} === 'decima'")
    steps.newest(browser)
    browser.press("j")
    row = "document.activeElement.getAttribute('aria-expanded')"
    assert browser.evaluate(row) == "false"
    browser.press("Enter")
    assert browser.evaluate(row) == "true"

    browser.press("p")
    steps.wait_for(browser, "document.activeElement.id === 'action-reason'")
    browser.write("by hand")
    browser.press("Enter")
    steps.wait_for(browser, f"{steps.said_by('because')}.includes('by hand')")

    browser.evaluate("document.querySelector('.skip').focus()")
    reached = []
    for _ in range(12):
        browser.press("Tab")
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert browser.evaluate(outline) != "none"
        reached.append(browser.evaluate("document.activeElement.id"))
    wanted = [
        "token-button",
        "theme-button",
        "help-button",
        "resume",
        "promote",
        "rollback",
        "charts",
    ]
    assert [each for each in reached if each in wanted] == wanted


def test_dark_and_light(browser: Browser, start: Start) -> None:
    served = start()
    steps.open_console(browser, served.base)
    light = background(browser)
    steps.open_console(browser, served.base, dark=True)
    dark = background(browser)
    assert (light, dark) == ("rgb(245, 245, 242)", "rgb(16, 18, 23)")
    browser.press("d")
    assert background(browser) == light  # chosen by hand, it holds
    browser.press("d")
    assert background(browser) == dark
    browser.press("d")
    assert browser.text("theme-button") == "theme: auto"


def test_a_service_nobody_has_asked_yet(browser: Browser, start: Start) -> None:
    served = start()
    fresh = MadeUp("decima", "A", "fair", decima_decision, datetime.now(UTC), seed=3)
    fresh.rate = 1e-9
    served.service.systems = {"decima": fresh}
    steps.open_console(browser, served.base)
    assert browser.text("decisions-total") == "0"
    assert browser.text("fallback-rate") == browser.text("shadow-agreement") == "\u2013"
    assert browser.text("feed-empty") == "No decision has been asked for yet."
    assert browser.evaluate("document.getElementById('promote').disabled")
    assert browser.faults() == []


def test_a_hidden_tab_asks_nothing(browser: Browser, start: Start) -> None:
    def become(hidden: str) -> None:
        value = f"{{ configurable: true, value: {hidden} }}"
        browser.evaluate(f"Object.defineProperty(document, 'hidden', {value})")
        browser.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    steps.open_console(browser, start().base)
    become("true")
    steps.wait_for(browser, f"{steps.said_by('pulse')} === 'held while hidden'")
    asked = len(browser.requests())
    time.sleep(2.3 / steps.HASTE)  # a beat and a bit
    browser.evaluate("0")
    assert len(browser.requests()) == asked
    become("false")
    steps.wait_for(browser, f"{steps.said_by('pulse')} === 'live'")
    assert len(browser.requests()) > asked


def test_nothing_sticks_out(browser: Browser, start: Start) -> None:
    steps.open_console(browser, start().base, width=360)
    steps.expand(browser, steps.newest(browser))
    for width in (360, 640, 820, 1180, 1920):
        shape = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.send("Emulation.setDeviceMetricsOverride", **shape)
        steps.wait_for(browser, f"innerWidth === {width}")
        assert browser.evaluate("document.documentElement.scrollWidth") == width


def test_a_service_that_is_gone_or_busy(browser: Browser, start: Start) -> None:
    served = start()
    steps.open_console(browser, served.base)
    served.service.refuses = (429, "too many requests: 100 in one second")
    told = steps.wait_for(browser, BANNER)
    assert "too many requests: 100 in one second" in told
    assert "in 3" in told  # as Retry-After asks
    assert not browser.evaluate(GREYED)
    served.service.refuses = None
    steps.wait_for(browser, "document.getElementById('banner').hidden")

    shown = browser.text("decisions")
    served.stop()
    steps.wait_for(browser, f"{GREYED} && {BANNER}.startsWith('The service does not answer.')")
    assert len(browser.text("decisions")) >= len(shown) // 2  # the last picture stays
    assert browser.evaluate("document.getElementById('pause').disabled")
    served.start()
    steps.wait_for(browser, f"!({GREYED}) && document.getElementById('banner').hidden")
    assert not browser.evaluate("document.getElementById('pause').disabled")
