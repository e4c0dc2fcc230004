"""The console on the real gateway: Decima decides, an operator watches, pauses and resumes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvicorn

from loadmaster.envs.settings import build_settings
from loadmaster.models.manifest import pretrained_folder
from loadmaster.serving.client import Client
from loadmaster.serving.http.app_factory import assemble
from loadmaster.serving.settings import ServeSettings
from loadmaster.serving.worker.worker import SystemWorker
from tests.serving.console import steps

if TYPE_CHECKING:
    from tests.browser import Browser

READ, ADMIN = "a-token-that-may-read", "a-token-that-may-do-all"


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The gateway behind HTTP, its worker in the same process."""
    monkeypatch.setenv("LOADMASTER_TOKENS", f"read {READ}, admin {ADMIN}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    settings = build_settings(
        ServeSettings,
        {"systems": {"decima": {"deadline_ms": 20_000}}, "folder": tmp_path, "listen": False},
    )
    folder = str(pretrained_folder() / "decima-stream")
    worker = SystemWorker("decima", "", "weighted-fair", folder)
    app = assemble(settings, {"decima": worker}).app
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", lifespan="on"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(timeout=15)


def test_an_operator_pauses_decima(browser: Browser, base: str) -> None:
    client = Client(base, token=READ, deadline_s=30)
    state = client.example("decima", "small")
    while (first := client.decide("decima", state)).source != "policy":  # the worker is starting
        assert first.cause == "worker down"
    steps.load_console(browser, base)
    steps.enter_token(browser, ADMIN)
    steps.wait_for(browser, "document.documentElement.dataset.ready === 'yes'")
    assert steps.newest(browser) == first.id
    told = steps.expand(browser, first.id)
    assert first.reason.summary in told
    assert first.reason.choices["stage"][0].name in told
    browser.press("Escape")
    steps.pause(browser, "the cluster is being upgraded")
    later = client.decide("decima", state)
    assert (later.source, later.cause) == ("fallback", "paused")
    browser.evaluate("document.querySelector('#decisions .row[aria-expanded=true]')?.click()")
    steps.wait_for_fallback(browser, "paused")
    steps.resume(browser)
    assert client.decide("decima", state).source == "policy"
