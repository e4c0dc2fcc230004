"""Access control over all routes, and secrecy of tokens."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from loadmaster.serving.http.routes import PUBLIC
from loadmaster.serving.http.schemas import SystemsResponse
from loadmaster.serving.policies.manager import AdminAction
from tests.serving.conftest import LocalService, Start

READ, ADMIN, OTHER = "read-0123456789abcdef", "admin-0123456789abcdef", "other-0123456789abcdef"
STATE = {"state": {"load": 42, "replicas": 3}}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text(f"# comment\nread {READ}\nadmin {ADMIN}\n")
    file.chmod(0o600)
    return file


def routes_of(here: LocalService) -> Iterator[tuple[str, str, str]]:
    """Method, path and declared path of every route."""
    for route in here.service.app.routes:
        assert isinstance(route, Route), f"{route} is not covered by these tests"
        for method in sorted(route.methods or ()):
            yield method, route.path.format(system="toy"), route.path


def body_for(path: str) -> Any:
    return {"decide": STATE, "feedback": {"outcome": {"reward": 1.0}}}.get(path.rpartition("/")[2])


INVALID = {
    "none": [],
    "empty": [("Authorization", "")],
    "no token": [("Authorization", "Bearer ")],
    "wrong": [("Authorization", "Bearer wrong-0123456789abcdef")],
    "a part of it": [("Authorization", f"Bearer {ADMIN[:-1]}")],
    "and more": [("Authorization", f"Bearer {ADMIN}x")],
    "another case": [("Authorization", f"Bearer {ADMIN.upper()}")],
    "no kind": [("Authorization", ADMIN)],
    "another kind": [("Authorization", f"Basic {ADMIN}")],
    "base64": [("Authorization", "Basic YWRtaW46YWRtaW4=")],
    "two, the first right": [
        ("Authorization", f"Bearer {ADMIN}"),
        ("Authorization", "Bearer wrong-0123456789abcdef"),
    ],
    "two of the same": [("Authorization", f"Bearer {ADMIN}")] * 2,
    "two in one": [("Authorization", f"Bearer {ADMIN}, Bearer {ADMIN}")],
    "in another header": [("X-Token", ADMIN), ("Cookie", f"token={ADMIN}")],
    "the file's line": [("Authorization", f"Bearer admin {ADMIN}")],
    "Latin letters": [("Authorization", "Bearer é²ÿ-0123456789abcdef")],
    "very long": [("Authorization", f"Bearer {'x' * 60_000}")],
}


@pytest.mark.parametrize("how", INVALID)
def test_every_route_but_the_public_ones_needs_a_token(
    start: Start, tokens: Path, how: str
) -> None:
    here = start(tokens=tokens, limits={"wrong_tokens": 1000})
    before = here.request("GET", "/v1/toy/status", headers=bearer(READ)).json
    closed = 0
    for method, path, declared in routes_of(here):
        query = f"?token={ADMIN}&access_token={ADMIN}&authorization=Bearer%20{ADMIN}"
        answer = here.request(method, path + query, body_for(path), headers=INVALID[how])
        if declared in PUBLIC:
            assert answer.status == 200, (method, path, answer)
            continue
        closed += 1
        assert answer.status == 401, (method, path, answer)
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json["field"] is None
    assert closed >= 10
    assert here.request("GET", "/v1/toy/status", headers=bearer(READ)).json == before


def test_public_routes_exist(start: Start) -> None:
    declared = {path for _, _, path in routes_of(start())}
    assert set(PUBLIC) <= declared


@pytest.mark.parametrize("token", [READ, ADMIN])
def test_only_an_admin_token_allows_admin_actions(start: Start, tokens: Path, token: str) -> None:
    here = start(tokens=tokens)
    actions = 0
    for method, path, declared in routes_of(here):
        if declared in PUBLIC:
            continue
        expected = 200
        if path.rpartition("/")[2] in list(AdminAction):
            actions += 1
            conflict = path.endswith(("promote", "rollback"))
            expected = 403 if token == READ else 409 if conflict else 200
        answer = here.request(method, path, body_for(path), headers=bearer(token))
        assert answer.status == expected, (method, path, answer)
    assert actions == len(AdminAction)


@pytest.mark.parametrize(("token", "scope"), [(READ, "read"), (ADMIN, "admin")])
def test_the_list_of_systems_has_the_scope(
    start: Start, tokens: Path, token: str, scope: str
) -> None:
    systems = start(tokens=tokens).request("GET", "/v1/systems", headers=bearer(token)).json
    SystemsResponse.model_validate(systems)
    assert (systems["service"]["tokens"], systems["service"]["scope"]) == (True, scope)


@pytest.mark.parametrize("header", ["bearer  {}", "BEARER {}", " Bearer {} "])
def test_variants_of_the_header_are_accepted(start: Start, tokens: Path, header: str) -> None:
    headers = {"Authorization": header.format(READ)}
    assert start(tokens=tokens).request("GET", "/v1/systems", headers=headers).status == 200


def test_tokens_are_checked_first(start: Start, tokens: Path) -> None:
    here = start(tokens=tokens)
    for path, headers in [
        ("/v1/unknown/decide", {}),
        ("/v1/toy/decide", {"Content-Length": "999999999999"}),
        ("/v1/toy/decide", {"Content-Type": "text/plain"}),
    ]:
        assert here.request("POST", path, b"no json", headers=headers).status == 401


# Without tokens.


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:8700"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "10.0.0.7:8700"},
        {"Host": "0.0.0.0:8700"},
        {"Host": "[2001:db8::1]:8700"},
        {"Host": ""},
        {"Host": "127.0.0.1:8700", "Origin": "http://evil.example"},
        {"Host": "127.0.0.1:8700", "Origin": "http://127.0.0.1:3000"},
        {"Host": "127.0.0.1:8700", "Origin": "null"},
        {"Host": "localhost:8700", "Origin": "http://127.0.0.1:8700"},
    ],
)
def test_other_hosts_and_origins_are_refused_without_tokens(
    start: Start, headers: dict[str, str]
) -> None:
    """A web page in a browser on this machine must not be able to pause the service."""
    here = start()
    for method, path, declared in routes_of(here):
        if declared not in PUBLIC:
            answer = here.request(method, path, body_for(path), headers=headers)
            assert answer.status == 403, (method, path, answer)
    assert not here.status()["paused"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "127.0.0.1:8700"},
        {"Host": "localhost"},
        {"Host": "[::1]:8700"},
        {"Host": "127.0.0.1:8700", "Origin": "http://127.0.0.1:8700"},
        {"Host": "localhost:8700", "Origin": "http://localhost:8700"},
    ],
)
def test_loopback_hosts_are_allowed_without_tokens(start: Start, headers: dict[str, str]) -> None:
    assert start().request("POST", "/v1/toy/pause", headers=headers).json["paused"]


def test_any_host_is_allowed_with_tokens(start: Start, tokens: Path) -> None:
    headers = {**bearer(READ), "Host": "loadmaster.example", "Origin": "https://elsewhere.example"}
    assert start(tokens=tokens).request("GET", "/v1/systems", headers=headers).status == 200


# Rates.


def test_each_token_has_its_own_rate(start: Start, tokens: Path) -> None:
    tokens.write_text(f"read {READ}\nread {OTHER}\nadmin {ADMIN}\n")
    here = start(tokens=tokens, limits={"rate_per_s": 0.01, "burst": 3})
    statuses = [here.request("GET", "/v1/systems", headers=bearer(READ)).status for _ in range(5)]
    assert statuses == [200, 200, 200, 429, 429]
    answer = here.request("POST", "/v1/toy/decide", STATE, headers=bearer(READ))
    assert answer.status == 429
    assert 90 <= int(answer.headers["retry-after"]) <= 101
    assert here.request("GET", "/v1/systems", headers=bearer(OTHER)).status == 200
    assert here.request("POST", "/v1/toy/pause", headers=bearer(ADMIN)).status == 200


def test_each_address_has_its_own_rate_without_tokens(start: Start) -> None:
    here = start(limits={"rate_per_s": 0.01, "burst": 2})
    statuses = [
        here.request("GET", "/v1/systems", address=a).status for a in ("1.1", "1.1", "1.1", "2.2")
    ]
    assert statuses == [200, 200, 429, 200]
    assert here.request("GET", "/healthz", address="1.1").status == 200  # probes are not limited


def test_guesses_of_tokens_are_limited(start: Start, tokens: Path) -> None:
    here = start(tokens=tokens, limits={"wrong_tokens": 5})

    def status_of(token: str, address: str) -> int:
        return here.request("GET", "/v1/systems", headers=bearer(token), address=address).status

    assert status_of(READ, "10.0.0.1") == 200  # valid at this address before
    guesses = [status_of(f"guess-0123456789-{number}", "10.0.0.1") for number in range(8)]
    assert guesses == [401] * 5 + [429] * 3
    assert status_of(ADMIN, "10.0.0.1") == 429  # although it is valid
    assert status_of(READ, "10.0.0.1") == 200
    assert status_of(ADMIN, "10.0.0.2") == 200  # another address
    answer = here.request(
        "GET", "/v1/systems", headers=bearer("guess-0123456789"), address="10.0.0.1"
    )
    assert answer.headers["retry-after"] == "1"


def test_requests_without_a_token_are_not_guesses(start: Start, tokens: Path) -> None:
    here = start(tokens=tokens, limits={"wrong_tokens": 2, "rate_per_s": 0.01, "burst": 10})
    for _ in range(8):
        assert here.request("GET", "/v1/systems").status == 401
    assert here.request("GET", "/v1/systems", headers=bearer(READ)).status == 200
    statuses = [here.request("GET", "/v1/systems").status for _ in range(4)]
    assert statuses == [401, 401, 429, 429]  # but they have a rate


# Rotation.


def test_tokens_are_rotated_without_a_restart(
    start: Start, tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here = start(tokens=tokens)

    def opens(token: str) -> bool:
        return here.request("GET", "/v1/systems", headers=bearer(token)).status == 200

    assert opens(READ)
    assert not opens(OTHER)
    fresh = tokens.with_name("fresh")
    fresh.write_text(f"read {OTHER}\n")
    fresh.rename(tokens)
    assert opens(OTHER)
    assert not opens(READ)
    with caplog.at_level(logging.WARNING):
        for break_it in (
            lambda: tokens.write_text(""),
            lambda: tokens.write_text("admin x\n"),
            lambda: tokens.write_bytes(b"\xff\x00" * 100),
            lambda: tokens.write_text(f"read {READ}\n" * 100_000),
            tokens.unlink,
            lambda: os.mkfifo(tokens),  # opening it would block
        ):
            break_it()
            for _ in range(3):
                assert opens(OTHER)  # an invalid file leaves the old tokens valid
            assert not opens(READ)
    warnings = [one.getMessage() for one in caplog.records if "stay valid" in one.getMessage()]
    assert len(warnings) == 6  # once each
    tokens.unlink()
    tokens.write_text(f"read {READ}\n")
    assert opens(READ)
    assert not opens(OTHER)


def test_tokens_of_the_environment_are_valid_too(
    start: Start, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = start(tokens=tokens)
    assert here.request("GET", "/v1/systems", headers=bearer(OTHER)).status == 401
    here.close()
    monkeypatch.setenv("LOADMASTER_TOKENS", f"read {OTHER}")
    here = start(tokens=tokens)
    assert here.request("GET", "/v1/systems", headers=bearer(OTHER)).status == 200
    assert here.request("GET", "/v1/systems", headers=bearer(READ)).status == 200


# Secrets.


def test_tokens_are_never_written_or_returned(
    start: Start, tokens: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    here = start(tokens=tokens)
    typo = ADMIN[:-1] + "X"
    answers = []
    for token in (READ, ADMIN, typo):
        for method, path, _ in routes_of(here):
            bodies = (body_for(path), b"no json", {"bundle": "/nowhere"})
            answers += [here.request(method, path, body, headers=bearer(token)) for body in bodies]
        answers.append(here.request("GET", "/nowhere", headers=bearer(token)))
        answers.append(here.request("POST", "/v1/unknown/decide", STATE, headers=bearer(token)))
    system = here.service.systems["toy"]
    here.run(system.tick())

    def broken(*_: Any) -> Any:
        raise RuntimeError("a bug")

    system.status = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        here.request("GET", "/v1/toy/status", headers=bearer(READ))
    here.close()

    written = b"".join(one.body + repr(one.headers).encode() for one in answers)
    files = [file for file in (here.folder / "kept").rglob("*") if file.is_file()]
    assert len(files) > 2  # the log, the state, a bundle
    written += b"".join(file.read_bytes() for file in files)
    written += "".join(capfd.readouterr()).encode() + caplog.text.encode()
    for token in (READ, ADMIN, typo):
        assert token.encode() not in written
