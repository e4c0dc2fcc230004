"""Who can reach the service: without tokens this machine alone, with them whoever has one."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.platform.cli.main import main
from loadmaster.serving.client import AsyncClient, ServiceError
from loadmaster.serving.http.app_factory import assemble
from loadmaster.serving.settings import ServeSettings
from tests.serving import toy
from tests.serving.addresses import other_addresses, refuses
from tests.serving.conftest import Start
from tests.serving.live import Live, free_port

TOKEN = "a-token-that-is-long-enough-for-this"


def test_without_tokens_other_addresses_are_refused(live: Live) -> None:
    assert not refuses("127.0.0.1", live.port)
    for address in other_addresses():
        assert refuses(address, live.port), address


def test_serve_opens_no_port_of_its_own_for_http(live: Live) -> None:
    """No proxy runs; the usual ports of Serve's are free, unless somebody else has them."""
    from ray import serve

    assert serve.status().proxies == {}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
def test_other_hosts_without_tokens_are_refused(
    host: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the command in one line, and by the gateway itself, however it was started."""
    monkeypatch.delenv("LOADMASTER_TOKENS", raising=False)
    bundle = str(toy.make_bundle(tmp_path / "bundle"))
    systems = {"toy": {"endpoint": toy.REFERENCE, "bundle": bundle}}
    line = f"--host {host} would let others in without a token"
    given = ["--set", f"systems.toy={{endpoint: '{toy.REFERENCE}', bundle: {bundle}}}"]
    assert main(["serve", "--host", host, "--port", str(free_port()), *given]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"error: {line}")
    assert told.err.count("\n") == 1
    settings = build_settings(ServeSettings, {"systems": systems, "host": host, "folder": tmp_path})
    with pytest.raises(InputError, match=line):
        assemble(settings, {})


def test_with_tokens_other_addresses_are_asked_for_one(start: Start, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"read {TOKEN}\n")
    port = free_port()
    here = start(tokens=tokens, host="0.0.0.0", port=port, listen=True)

    async def ask(address: str, token: str | None) -> str:
        async with AsyncClient(f"http://{address}:{port}", token, deadline_s=20) as client:
            return (await client.decide("toy", {"load": 42, "replicas": 3})).source

    for address in ["127.0.0.1", *other_addresses(socket.AF_INET)]:
        assert here.run(ask(address, TOKEN)) == "policy"
        for wrong in (None, "another-token-that-nobody-gave-out"):
            with pytest.raises(ServiceError, match="no valid token") as refusal:
                here.run(ask(address, wrong))
            assert refusal.value.status == 401


def test_a_port_that_is_taken_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port), "--folder", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: cannot listen on 127.0.0.1:{port}: Address already in use")
    assert told.count("\n") == 1
