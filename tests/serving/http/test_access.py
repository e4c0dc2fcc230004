"""Who may ask for what, over all routes; and that tokens stay secret."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from loadmaster.serving.http.routes import PUBLIC
from loadmaster.serving.http.schemas import SystemList
from loadmaster.serving.policies.manager import VERBS
from tests.serving.conftest import Here, Start

READ, ADMIN, OTHER = "read-0123456789abcdef", "admin-0123456789abcdef", "other-0123456789abcdef"
STATE = {"state": {"load": 42, "replicas": 3}}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text(f"# who may ask\nread {READ}\nadmin {ADMIN}\n")
    file.chmod(0o600)
    return file


def routes_of(here: Here) -> Iterator[tuple[str, str, str]]:
    """Method, path and path as declared, of all there are."""
    for route in here.service.app.routes:
        assert isinstance(route, Route), f"{route} is not walked by these tests"
        for method in sorted(route.methods or ()):
            yield method, route.path.format(system="toy"), route.path


def is_admin(path: str) -> bool:
    return path.rpartition("/")[2] in VERBS


def body_for(path: str) -> Any:
    return {"decide": STATE, "feedback": {"outcome": {"reward": 1.0}}}.get(path.rpartition("/")[2])


NO_GOOD = {
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


@pytest.mark.parametrize("how", NO_GOOD)
def test_every_route_but_the_public_ones_is_closed(start: Start, tokens: Path, how: str) -> None:
    here = start(tokens=tokens, limits={"wrong_tokens": 1000})
    before = here.ask("GET", "/v1/toy/status", headers=bearer(READ)).json
    closed = 0
    for method, path, declared in routes_of(here):
        query = f"?token={ADMIN}&access_token={ADMIN}&authorization=Bearer%20{ADMIN}"
        answered = here.ask(method, path + query, body_for(path), headers=NO_GOOD[how])
        if declared in PUBLIC:
            assert answered.status == 200, (method, path, answered)
            continue
        closed += 1
        assert answered.status == 401, (method, path, answered)
        assert answered.headers["www-authenticate"] == "Bearer"
        assert answered.json["field"] is None
    assert closed >= 10
    assert here.ask("GET", "/v1/toy/status", headers=bearer(READ)).json == before


def test_public_routes_are_all_there(start: Start) -> None:
    declared = {path for _, _, path in routes_of(start())}
    assert set(PUBLIC) <= declared


def test_what_a_token_to_read_opens(start: Start, tokens: Path) -> None:
    here = start(tokens=tokens)
    verbs = 0
    for method, path, declared in routes_of(here):
        if declared in PUBLIC:
            continue
        answered = here.ask(method, path, body_for(path), headers=bearer(READ))
        if is_admin(path):
            verbs += 1
            assert answered.status == 403, (method, path, answered)
            assert "scope admin" in answered.json["error"]
        else:
            assert answered.status == 200, (method, path, answered)
    assert verbs == len(VERBS)
    told = here.ask("GET", "/v1/toy/status", headers=bearer(READ)).json
    assert not told["paused"]


def test_what_a_token_to_administer_opens(start: Start, tokens: Path) -> None:
    here = start(tokens=tokens)
    for method, path, declared in routes_of(here):
        if declared not in PUBLIC:
            answered = here.ask(method, path, body_for(path), headers=bearer(ADMIN))
            nothing_there = path.endswith(("promote", "rollback"))
            assert answered.status == (409 if nothing_there else 200), (method, path, answered)


@pytest.mark.parametrize(("token", "scope"), [(READ, "read"), (ADMIN, "admin")])
def test_the_list_tells_what_one_may_do(start: Start, tokens: Path, token: str, scope: str) -> None:
    told = start(tokens=tokens).ask("GET", "/v1/systems", headers=bearer(token)).json
    SystemList.model_validate(told)
    assert (told["service"]["tokens"], told["service"]["scope"]) == (True, scope)


@pytest.mark.parametrize("header", ["bearer  {}", "BEARER {}", " Bearer {} "])
def test_headers_as_others_write_them(start: Start, tokens: Path, header: str) -> None:
    headers = {"Authorization": header.format(READ)}
    assert start(tokens=tokens).ask("GET", "/v1/systems", headers=headers).status == 200


def test_bad_tokens_are_refused_before_anything_else_is_looked_at(
    start: Start, tokens: Path
) -> None:
    here = start(tokens=tokens)
    for path, headers in [
        ("/v1/nobody/decide", {}),
        ("/v1/toy/decide", {"Content-Length": "999999999999"}),
        ("/v1/toy/decide", {"Content-Type": "text/plain"}),
    ]:
        assert here.ask("POST", path, b"no json", headers=headers).status == 401


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
def test_pages_of_others_cannot_ask(start: Start, headers: dict[str, str]) -> None:
    """Somebody looks at a page that would like to pause the service on his machine."""
    here = start()
    for method, path, declared in routes_of(here):
        if declared not in PUBLIC:
            answered = here.ask(method, path, body_for(path), headers=headers)
            assert answered.status == 403, (method, path, answered)
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
def test_this_machine_and_its_own_console_can(start: Start, headers: dict[str, str]) -> None:
    assert start().ask("POST", "/v1/toy/pause", headers=headers).json["paused"]


def test_with_tokens_any_host_is_good(start: Start, tokens: Path) -> None:
    headers = {**bearer(READ), "Host": "loadmaster.example", "Origin": "https://elsewhere.example"}
    assert start(tokens=tokens).ask("GET", "/v1/systems", headers=headers).status == 200


# How often.


def test_one_asker_does_not_exhaust_another(start: Start, tokens: Path) -> None:
    tokens.write_text(f"read {READ}\nread {OTHER}\nadmin {ADMIN}\n")
    here = start(tokens=tokens, limits={"rate_per_s": 0.01, "burst": 3})
    statuses = [here.ask("GET", "/v1/systems", headers=bearer(READ)).status for _ in range(5)]
    assert statuses == [200, 200, 200, 429, 429]
    answered = here.ask("POST", "/v1/toy/decide", STATE, headers=bearer(READ))
    assert answered.status == 429
    assert 90 <= int(answered.headers["retry-after"]) <= 101
    assert here.ask("GET", "/v1/systems", headers=bearer(OTHER)).status == 200
    assert here.ask("POST", "/v1/toy/pause", headers=bearer(ADMIN)).status == 200


def test_without_tokens_addresses_are_told_apart(start: Start) -> None:
    here = start(limits={"rate_per_s": 0.01, "burst": 2})
    asked = [here.ask("GET", "/v1/systems", address=a).status for a in ("1.1", "1.1", "1.1", "2.2")]
    assert asked == [200, 200, 429, 200]
    assert here.ask("GET", "/healthz", address="1.1").status == 200, "probes are never refused"


def test_guessing_is_slowed_down(start: Start, tokens: Path) -> None:
    here = start(tokens=tokens, limits={"wrong_tokens": 5})

    def ask(token: str, address: str) -> int:
        return here.ask("GET", "/v1/systems", headers=bearer(token), address=address).status

    assert ask(READ, "10.0.0.1") == 200  # a familiar face
    guesses = [ask(f"guess-0123456789-{number}", "10.0.0.1") for number in range(8)]
    assert guesses == [401] * 5 + [429] * 3
    assert ask(ADMIN, "10.0.0.1") == 429, "nobody is told that this guess was right"
    assert ask(READ, "10.0.0.1") == 200, "who was there before is not shut out by a guesser"
    assert ask(ADMIN, "10.0.0.2") == 200, "nor are others elsewhere"
    told = here.ask("GET", "/v1/systems", headers=bearer("guess-0123456789"), address="10.0.0.1")
    assert told.headers["retry-after"] == "1"


def test_who_has_no_token_yet_is_not_taken_for_a_guesser(start: Start, tokens: Path) -> None:
    here = start(tokens=tokens, limits={"wrong_tokens": 2, "rate_per_s": 0.01, "burst": 10})
    for _ in range(8):
        assert here.ask("GET", "/v1/systems").status == 401
    assert here.ask("GET", "/v1/systems", headers=bearer(READ)).status == 200
    statuses = [here.ask("GET", "/v1/systems").status for _ in range(4)]
    assert statuses == [401, 401, 429, 429], "but not without end"


# New tokens.


def test_tokens_change_without_a_restart(
    start: Start, tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here = start(tokens=tokens)

    def opens(token: str) -> bool:
        return here.ask("GET", "/v1/systems", headers=bearer(token)).status == 200

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
            lambda: os.mkfifo(tokens),  # to open it would be to wait
        ):
            break_it()
            for _ in range(3):
                assert opens(OTHER), "a file that went bad leaves the old tokens valid"
            assert not opens(READ)
    warnings = [one.getMessage() for one in caplog.records if "stay valid" in one.getMessage()]
    assert len(warnings) == 6, "told once each"
    tokens.unlink()
    tokens.write_text(f"read {READ}\n")
    assert opens(READ)
    assert not opens(OTHER)


def test_tokens_of_the_environment_count_as_well(
    start: Start, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = start(tokens=tokens)
    assert here.ask("GET", "/v1/systems", headers=bearer(OTHER)).status == 401
    here.close()
    monkeypatch.setenv("LOADMASTER_TOKENS", f"read {OTHER}")
    here = start(tokens=tokens)
    assert here.ask("GET", "/v1/systems", headers=bearer(OTHER)).status == 200
    assert here.ask("GET", "/v1/systems", headers=bearer(READ)).status == 200


# Secrets.


def test_tokens_are_told_and_written_nowhere(
    start: Start, tokens: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    here = start(tokens=tokens)
    typo = ADMIN[:-1] + "X"
    answers = []
    for token in (READ, ADMIN, typo):
        for method, path, _ in routes_of(here):
            bodies = (body_for(path), b"no json", {"bundle": "/nowhere"})
            answers += [here.ask(method, path, body, headers=bearer(token)) for body in bodies]
        answers.append(here.ask("GET", "/nowhere", headers=bearer(token)))
        answers.append(here.ask("POST", "/v1/nobody/decide", STATE, headers=bearer(token)))
    system = here.service.systems["toy"]
    here.run(system.look_after())

    def broken(*_: Any) -> Any:
        raise RuntimeError("not foreseen")

    system.status = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        here.ask("GET", "/v1/toy/status", headers=bearer(READ))
    here.close()

    told = b"".join(one.body + repr(one.headers).encode() for one in answers)
    files = [file for file in (here.folder / "kept").rglob("*") if file.is_file()]
    assert len(files) > 2, "the log, what is remembered, a bundle"
    told += b"".join(file.read_bytes() for file in files)
    told += "".join(capfd.readouterr()).encode() + caplog.text.encode()
    for token in (READ, ADMIN, typo):
        assert token.encode() not in told
