"""Known callers over restarts, and clients behind proxies: which are limited by wrong tokens."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.serving.http import known_callers
from loadmaster.serving.http.known_callers import KnownCallers
from loadmaster.serving.settings import ServeSettings
from tests.serving.conftest import LocalService, Start

READ, ADMIN, WRONG = (f"{name}-0123456789abcdef" for name in ("read", "admin", "wrong"))
PROXY, OTHER, CLIENT = "10.0.0.1", "203.0.113.9", "198.51.100.7"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text(f"read {READ}\nadmin {ADMIN}\n")
    return file


def status(here: LocalService, token: str, address: str = PROXY, *forwarded: str) -> int:
    headers = [("Authorization", f"Bearer {token}")]
    headers += [("X-Forwarded-For", value) for value in forwarded]
    return here.request("GET", "/v1/systems", headers=headers, address=address).status


def test_known_callers_are_served_after_a_restart_under_wrong_tokens(
    start: Start, tokens: Path, tmp_path: Path
) -> None:
    limits = {"wrong_tokens": 3}
    here = start(tokens=tokens, limits=limits)
    assert status(here, READ) == 200
    here.close()
    file = tmp_path / "kept" / "known-callers.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert not any(secret in file.read_text() for secret in (READ, PROXY))
    again = start(tokens=tokens, limits=limits)
    assert [status(again, WRONG) for _ in range(4)] == [401, 401, 401, 429]
    assert status(again, READ) == 200
    assert status(again, ADMIN) == 429  # was never used at this address
    assert status(again, READ, OTHER) == 200
    again.close()
    tokens.write_text(f"admin {ADMIN}\n")  # the token is withdrawn: being known is not enough
    assert status(start(tokens=tokens), READ) == 401


def test_callers_are_bounded_and_the_most_recent_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_callers, "MAX_CALLERS", 3)
    file = tmp_path / "callers.json"
    callers = KnownCallers(file)
    for number in range(3):
        callers.add(str(number), b"digest")
    assert callers.knows("0", b"digest")
    callers.add("3", b"digest")  # 1 was used least recently
    callers.save(callers.unsaved() or [])
    assert callers.unsaved() is None
    again = KnownCallers(file)
    assert [again.knows(str(n), b"digest") for n in range(4)] == [True, False, True, True]
    assert not again.knows("0", b"another digest")
    assert len(json.loads(file.read_text())) == 3


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b'["x", 5, null]', b"\xff", b"[" * 99_999])
def test_damaged_file_is_ignored(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "callers.json"
    file.write_bytes(content)
    callers = KnownCallers(file)
    assert not callers.knows("a", b"digest")
    callers.add("a", b"digest")
    callers.save(callers.unsaved() or [])
    assert KnownCallers(file).knows("a", b"digest")


def test_unwritable_file_costs_no_request(tmp_path: Path) -> None:
    callers = KnownCallers(tmp_path / "missing" / "callers.json")
    callers.add("a", b"digest")
    callers.save(callers.unsaved() or [])
    assert callers.knows("a", b"digest")
    assert callers.unsaved() is not None  # the next attempt writes them


@pytest.mark.parametrize(
    ("address", "forwarded", "client"),
    [
        (PROXY, [CLIENT], CLIENT),
        (PROXY, [f"{OTHER}, {CLIENT}"], CLIENT),  # what the client claims stands on the left
        (PROXY, [OTHER, CLIENT], CLIENT),  # in two headers
        (PROXY, [f"{CLIENT}, 10.0.0.2 ,10.9.9.9"], CLIENT),  # through further trusted proxies
        (PROXY, [f"{CLIENT}:4711"], CLIENT),
        (PROXY, ["[2001:db8::1]:4711"], "2001:db8::1"),
        (PROXY, [f"::ffff:{CLIENT}"], CLIENT),
        (f"::ffff:{PROXY}", [CLIENT], CLIENT),
        (PROXY, ["10.0.0.2"], "10.0.0.2"),
        (PROXY, [], PROXY),
        (PROXY, ["", " , "], PROXY),
        ("fd00::5", [CLIENT], CLIENT),
        (OTHER, [CLIENT], OTHER),  # not a proxy: not believed
        (CLIENT, [PROXY], CLIENT),
        ("", [CLIENT], ""),
    ],
)
def test_address_of_a_client_behind_trusted_proxies(
    start: Start, tokens: Path, address: str, forwarded: list[str], client: str
) -> None:
    """Wrong tokens limit the client that sent them, and no other one behind the proxy."""
    proxies = ["10.0.0.0/8", "fd00::/8"]
    here = start(tokens=tokens, limits={"wrong_tokens": 1}, trusted_proxies=proxies)
    assert status(here, WRONG, address, *forwarded) == 401
    assert status(here, READ, address, *forwarded) == 429
    assert status(here, READ, client) == 429
    assert status(here, READ, PROXY, "198.51.100.99") == 200


@pytest.mark.parametrize("value", ["unknown", "1.2.3", f"{OTHER}, x", "10.0.0.2, _hidden", "é"])
def test_proxy_that_names_no_address_is_refused(start: Start, tokens: Path, value: str) -> None:
    here = start(tokens=tokens, trusted_proxies=[PROXY])
    assert status(here, READ, PROXY, value) == 400
    assert status(here, READ, OTHER, value) == 200


def test_headers_are_ignored_without_trusted_proxies(start: Start, tokens: Path) -> None:
    here = start(tokens=tokens, limits={"wrong_tokens": 2})
    found = [status(here, WRONG, PROXY, f"198.51.100.{n}") for n in range(3)]
    assert found == [401, 401, 429]


@pytest.mark.parametrize(
    "value", ["10.0.0.0/8", ["10.0.0.1/8"], ["proxy.example"], ["0.0.0.0/0"], ["::/0"], [""], [7]]
)
def test_wrong_proxies_are_refused(value: Any) -> None:
    with pytest.raises(InputError) as fault:
        build_settings(ServeSettings, {"trusted_proxies": value})
    assert str(fault.value).startswith("setting trusted_proxies")
    assert "\n" not in str(fault.value)
