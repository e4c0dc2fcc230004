"""Settings of the service."""

from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.serving import system
from loadmaster.serving.settings import ServeSettings, default_folder, is_loopback


@pytest.mark.parametrize(
    ("private", "hosts"),
    [
        (True, ["127.0.0.1", "127.9.9.9", "::1", "localhost"]),
        (False, ["0.0.0.0", "::", "10.0.0.7", "192.168.1.1", "::ffff:10.0.0.7", ""]),
        (False, ["loadmaster.example", "127.0.0.1.example", "127.1", "0177.0.0.1"]),
    ],
)
def test_loopback_hosts_are_private(private: bool, hosts: list[str]) -> None:
    for host in hosts:
        assert is_loopback(host) is private, host
        assert build_settings(ServeSettings, {"host": host}).is_private is private


def test_the_default_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "loadmaster" / "serve"
    assert ServeSettings().folder == default_folder()
    assert ServeSettings().is_private
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".local" / "state" / "loadmaster" / "serve"


@pytest.mark.parametrize(
    ("values", "contains"),
    [
        ({"systems": {}}, "systems"),
        ({"systems": {"toy": {"rul": "x"}}}, "systems.toy.rul"),
        ({"systems": {"toy": {"start": "INITIALIZED"}}}, "systems.toy.start"),
        ({"systems": {"toy": {"deadline_ms": 0}}}, "systems.toy.deadline_ms"),
        ({"systems": {"toy": {"deadline_ms": float("nan")}}}, "systems.toy.deadline_ms"),
        ({"systems": {"toy": {"batch": 64}}}, "systems.toy.batch"),
        ({"systems": {"toy": {"shadow_share": 1.5}}}, "systems.toy.shadow_share"),
        ({"port": 0}, "port"),
        ({"port": 70_000}, "port"),
        ({"prot": 80}, "'port'"),
        ({"limits": {"rate_per_s": 0}}, "limits.rate_per_s"),
        ({"limits": {"body_s": -1}}, "limits.body_s"),
        ({"limits": {"wrong_tokens": 0}}, "limits.wrong_tokens"),
    ],
)
def test_wrong_settings_are_refused(values: dict[str, Any], contains: str) -> None:
    with pytest.raises(InputError) as fault:
        build_settings(ServeSettings, values)
    assert contains in str(fault.value)
    assert "\n" not in str(fault.value)


def test_systems_without_a_policy_are_not_served_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {"das", "decima"} <= ServeSettings().systems.keys()
    monkeypatch.setattr(system, "pretrained_policies", lambda: ["das-small"])
    assert list(ServeSettings().systems) == ["das"]
