"""`loadmaster serve`: the lines it prints, and the checks of --try."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.settings import build_settings
from loadmaster.platform.cli import serve as command
from loadmaster.platform.ray import serve_session, serve_settings, session
from loadmaster.serving.settings import ServeSettings
from tests.platform.cli.one_line import Cli
from tests.serving import toy
from tests.serving.client.fake_service import DECISION, answer, fake_service

Captured = pytest.CaptureFixture[str]

TOKEN = "0123456789abcdef-secret"


@pytest.fixture
def systems(tmp_path: Path) -> dict[str, Any]:
    bundle = str(toy.make_bundle(tmp_path / "bundle"))
    return {"systems": {"toy": {"endpoint": toy.REFERENCE, "bundle": bundle}}}


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o604, True)])
def test_token_file_open_to_others_is_warned_of(
    systems: dict[str, Any], tmp_path: Path, capsys: Captured, mode: int, warns: bool
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"read {TOKEN}\n")
    tokens.chmod(mode)
    command.print_endpoints(build_settings(ServeSettings, {**systems, "tokens": tokens}))
    shown = capsys.readouterr()
    assert "toy: bundle, within 250 ms, else hold" in shown.out
    assert "No tokens are set" not in shown.out
    assert shown.err.count("\n") == int(warns)
    assert ("is readable by all users" in shown.err) == warns
    assert TOKEN not in shown.out + shown.err


def test_missing_tokens_are_mentioned(systems: dict[str, Any], capsys: Captured) -> None:
    command.print_endpoints(build_settings(ServeSettings, systems))
    assert "No tokens are set" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({}, 200, []),
        ({"source": "fallback", "cause": "timeout"}, 200, ["fallback (timeout)", "policy"]),
        ({"latency_ms": 251.0}, 200, ["251.0 ms", "250 ms"]),
        ({"error": "no such system"}, 404, ["no such system"]),
    ],
)
def test_try_reports_decisions_not_of_the_policy(
    change: Any, status: int, words: list[str], systems: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_service(answer({"load": 1}), answer({**DECISION, **change}, status)) as service:
        monkeypatch.setattr(serve_session, "base_url", lambda settings: service.url)
        faults = command.try_systems(build_settings(ServeSettings, systems))
    assert len(faults) == bool(words)
    assert all(fault.startswith("toy ") for fault in faults)
    assert [word for word in words if word not in faults[0]] == []


@pytest.mark.parametrize(("faults", "code"), [([], 0), (["toy was late", "das failed"], 1)])
def test_try_exits_with_1_and_one_line(
    faults: list[str], code: int, monkeypatch: pytest.MonkeyPatch, systems: Any, cli: Cli
) -> None:
    replaced: dict[Any, Any] = {
        serve_settings: {"serve_arguments": systems},
        serve_session: dict.fromkeys(("terminable", "until_stopped", "serving"), nullcontext())
        | {"check_reachability": None, "set_serve_env": None, "wait_until_ready": True},
        session: {"set_ray_env": None, "ray_session": nullcontext()},
        command: {"try_systems": faults},
    }
    for module, results in replaced.items():
        for name, result in results.items():
            monkeypatch.setattr(module, name, lambda *_, result=result, **__: result)
    shown = cli("serve --try", code)
    assert shown.out.endswith("stopped\n")
    assert shown.err == (f"error: {'; '.join(faults)}\n" if faults else "")
