"""The console on the real gateway: an operator pauses and resumes Decima."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from loadmaster.envs.settings import build_settings
from loadmaster.models.manifest import pretrained_folder
from loadmaster.serving.client import Client
from loadmaster.serving.http.app_factory import assemble
from loadmaster.serving.settings import ServeSettings
from loadmaster.serving.worker.worker import SystemWorker
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
    settings = build_settings(
        ServeSettings,
        {"systems": {"decima": {"deadline_ms": 20_000}}, "folder": tmp_path, "listen": False},
    )
    folder = str(pretrained_folder() / "decima-stream")
    worker = SystemWorker("decima", "", "weighted-fair", folder)
    server = HttpServer(assemble(settings, {"decima": worker}).app)
    yield server.base
    server.stop()


def test_operator_pauses_and_resumes_decima(browser: Browser, base: str) -> None:
    client = Client(base, token=READ, deadline_s=30)
    state = client.example("decima", "small")
    while (first := client.decide("decima", state)).source != "policy":  # the worker is starting
        assert first.cause == "worker down"
    console = Console(browser, base, ready=False)
    console.enter_token(ADMIN)
    console.wait_for(READY)
    assert console.newest_decision() == first.id
    text = console.expand(first.id)
    assert first.reason.summary in text
    assert first.reason.choices["stage"][0].name in text
    browser.press("Escape")
    console.pause("the cluster is being upgraded")
    paused = client.decide("decima", state)
    assert (paused.source, paused.cause) == ("fallback", "paused")
    browser.press("Escape")
    console.wait_for_tag("rule: paused")
    console.resume()
    assert client.decide("decima", state).source == "policy"
