"""Reachability: without tokens from this machine only, with tokens from everywhere."""

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


@pytest.mark.slow
def test_without_tokens_only_loopback_is_open(live: Live) -> None:
    from ray import serve

    assert not refuses("127.0.0.1", live.port)
    assert [address for address in other_addresses() if not refuses(address, live.port)] == []
    assert serve.status().proxies == {}


def assert_one_line(capsys: pytest.CaptureFixture[str], part: str) -> None:
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert part in output.err
    assert output.err.count("\n") == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
def test_public_hosts_without_tokens_are_refused(
    host: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the command in one line, and by the gateway itself."""
    monkeypatch.delenv("LOADMASTER_TOKENS", raising=False)
    bundle = str(toy.make_bundle(tmp_path / "bundle"))
    systems = {"toy": {"endpoint": toy.REFERENCE, "bundle": bundle}}
    given = ["--set", f"systems.toy={{endpoint: '{toy.REFERENCE}', bundle: {bundle}}}"]
    assert main(["serve", "--host", host, "--port", str(free_port()), *given]) == 2
    assert_one_line(capsys, f"--host {host} ")
    settings = build_settings(ServeSettings, {"systems": systems, "host": host, "folder": tmp_path})
    with pytest.raises(InputError, match=f"--host {host} "):
        assemble(settings, {})


def test_with_tokens_every_address_needs_one(start: Start, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"read {TOKEN}\n")
    port = free_port()
    here = start(tokens=tokens, host="0.0.0.0", port=port, listen=True)

    async def decide(address: str, token: str | None) -> str:
        async with AsyncClient(f"http://{address}:{port}", token, deadline_s=20) as client:
            return (await client.decide("toy", {"load": 42, "replicas": 3})).source

    for address in ["127.0.0.1", *other_addresses(socket.AF_INET)]:
        assert here.run(decide(address, TOKEN)) == "policy"
        for wrong in (None, "another-token-that-is-not-valid"):
            with pytest.raises(ServiceError) as refusal:
                here.run(decide(address, wrong))
            assert refusal.value.status == 401


def test_a_port_in_use_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port), "--folder", str(tmp_path)]) == 2
    assert_one_line(capsys, f"127.0.0.1:{port}")
