"""The console on the real gateway and the toy system: an operator pauses and resumes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from loadmaster.envs.settings import build_settings
from loadmaster.serving.client import Client
from loadmaster.serving.http.app_factory import assemble
from loadmaster.serving.settings import ServeSettings
from loadmaster.serving.worker.worker import SystemWorker
from tests.serving import toy
from tests.serving.console.console import READY, Console
from tests.serving.console.fake_service import HttpServer

if TYPE_CHECKING:
    from tests.browser import Browser

pytestmark = pytest.mark.slow

READ, ADMIN = "the-token-for-reading", "the-token-for-admins"


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The gateway over HTTP, with its worker in the same process."""
    monkeypatch.setenv("LOADMASTER_TOKENS", f"read {READ}, admin {ADMIN}")
    bundle = str(toy.make_bundle(tmp_path / "bundle"))
    system = {"endpoint": toy.REFERENCE, "bundle": bundle, "deadline_ms": 20_000}
    settings = {"systems": {"toy": system}, "folder": tmp_path / "kept", "listen": False}
    worker = SystemWorker("toy", toy.REFERENCE, "hold", bundle)
    service = assemble(build_settings(ServeSettings, settings), {"toy": worker})
    server = HttpServer(service.app)
    yield server.base
    server.stop()


def test_operator_pauses_and_resumes_toy(browser: Browser, base: str) -> None:
    client = Client(base, token=READ, deadline_s=30)
    state = client.example("toy", "small")
    while (first := client.decide("toy", state)).source != "policy":  # the worker is starting
        assert first.cause == "worker down"
    console = Console(browser, base, ready=False)
    console.enter_token(ADMIN)
    console.wait_for(READY)
    assert console.newest_decision() == first.id
    text = console.expand(first.id)
    assert first.reason.summary in text
    assert first.reason.choices["to"][0].name in text
    browser.press("Escape")
    console.pause("the cluster is being upgraded")
    paused = client.decide("toy", state)
    assert (paused.source, paused.cause) == ("fallback", "paused")
    browser.press("Escape")
    console.wait_for_tag("rule: paused")
    console.resume()
    assert client.decide("toy", state).source == "policy"
