"""Access control over all routes, and secrecy of tokens."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from starlette.routing import Route

from loadmaster.serving.http.routes import PUBLIC
from loadmaster.serving.http.schemas import SystemsResponse
from loadmaster.serving.policies.manager import AdminAction
from tests.serving.conftest import LocalService, Start

READ, ADMIN, OTHER = "read-0123456789abcdef", "admin-0123456789abcdef", "other-0123456789abcdef"
WRONG = "wrong-0123456789abcdef"
LOCAL, EVIL = "127.0.0.1:8700", "evil.example"
STATE = {"state": {"load": 42, "replicas": 3}}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text(f"# comment\nread {READ}\nadmin {ADMIN}\n")
    return file


def routes_of(here: LocalService, public: bool = True) -> Iterator[tuple[str, str, Any]]:
    """Method, path and a valid body of every route, or of those that are not public."""
    for route in here.service.app.routes:
        assert isinstance(route, Route), f"{route} is not covered by these tests"
        verb = route.path.rpartition("/")[2]
        body = {"decide": STATE, "feedback": {"outcome": {"reward": 1.0}}}.get(verb)
        for method in sorted(route.methods or ()):
            if public or route.path not in PUBLIC:
                yield method, route.path.format(system="toy"), body


INVALID = [
    [],
    [("X-Token", ADMIN), ("Cookie", f"token={ADMIN}")],
    [*bearer(ADMIN).items(), *bearer(WRONG).items()],
    [*bearer(ADMIN).items()] * 2,
    *(
        [("Authorization", value)]
        for value in (
            "", "Bearer ", f"Bearer {WRONG}", f"Bearer {ADMIN[:-1]}", f"Bearer {ADMIN}x",
            f"Bearer {ADMIN.upper()}", ADMIN, f"Basic {ADMIN}", "Basic YWRtaW46YWRtaW4=",
            f"Bearer {ADMIN}, Bearer {ADMIN}", f"Bearer admin {ADMIN}",
            "Bearer é²ÿ-0123456789abcdef", f"Bearer {'x' * 60_000}",
        )
    ),
]  # fmt: skip


def test_every_route_but_the_public_ones_needs_a_token(start: Start, tokens: Path) -> None:
    here = start(tokens=tokens, limits={"wrong_tokens": 1000})
    before = here.request("GET", "/v1/toy/status", headers=bearer(READ)).json
    query = f"?token={ADMIN}&access_token={ADMIN}&authorization=Bearer%20{ADMIN}"
    closed = list(routes_of(here, public=False))
    assert len(closed) >= 10
    for headers in INVALID:
        for method, path, body in closed:
            answer = here.request(method, path + query, body, headers=headers)
            assert answer.status == 401, (headers, method, path, answer)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json["field"] is None
        for path in PUBLIC:
            for method in ("GET", "HEAD"):
                assert here.request(method, path, headers=headers).status == 200
    for path, headers in [
        ("/v1/unknown/decide", {}),
        ("/v1/toy/decide", {"Content-Length": "999999999999"}),
        ("/v1/toy/decide", {"Content-Type": "text/plain"}),
    ]:  # tokens are checked first
        assert here.request("POST", path, b"no json", headers=headers).status == 401
    assert here.request("GET", "/v1/toy/status", headers=bearer(READ)).json == before


def test_only_an_admin_token_allows_admin_actions(start: Start, tokens: Path) -> None:
    here = start(tokens=tokens)
    seen = []
    for token, allowed in ((READ, 403), (ADMIN, 200)):
        for method, path, body in routes_of(here, public=False):
            verb, expected = path.rpartition("/")[2], 200
            if verb in list(AdminAction):
                seen.append(verb)
                conflicts = allowed == 200 and verb in ("promote", "rollback")
                expected = 409 if conflicts else allowed
            answer = here.request(method, path, body, headers=bearer(token))
            assert answer.status == expected, (method, path, answer)
    assert sorted(seen) == sorted([*AdminAction] * 2)


def test_the_list_of_systems_has_the_scope(start: Start, tokens: Path) -> None:
    """Also for any host and origin: a token is enough."""
    here = start(tokens=tokens)
    other = {"Host": "loadmaster.example", "Origin": "https://elsewhere.example"}
    variants = {f"bearer  {READ}": "read", f"BEARER {READ}": "read", f" Bearer {ADMIN} ": "admin"}
    for header, scope in variants.items():
        headers = {"Authorization": header, **other}
        systems = here.request("GET", "/v1/systems", headers=headers).json
        SystemsResponse.model_validate(systems)
        assert (systems["service"]["tokens"], systems["service"]["scope"]) == (True, scope)


def test_other_hosts_and_origins_are_refused_without_tokens(start: Start) -> None:
    """A web page in a browser on this machine must not be able to pause the service."""
    here = start()
    for headers in [
        *({"Host": host} for host in ("", EVIL, f"{EVIL}:8700", f"127.0.0.1.{EVIL}")),
        *({"Host": host} for host in ("10.0.0.7:8700", "0.0.0.0:8700", "[2001:db8::1]:8700")),
        {"Host": LOCAL, "Origin": f"http://{EVIL}"},
        {"Host": LOCAL, "Origin": "http://127.0.0.1:3000"},
        {"Host": LOCAL, "Origin": "null"},
        {"Host": "localhost:8700", "Origin": f"http://{LOCAL}"},
    ]:
        for method, path, body in routes_of(here, public=False):
            answer = here.request(method, path, body, headers=headers)
            assert answer.status == 403, (headers, method, path, answer)
    assert not here.status()["paused"]
    for headers in [
        {},
        *({"Host": host} for host in (LOCAL, "localhost", "[::1]:8700")),
        *({"Host": host, "Origin": f"http://{host}"} for host in (LOCAL, "localhost:8700")),
    ]:
        assert here.request("GET", "/v1/systems", headers=headers).status == 200


RATES = [  # valid tokens, limits; token, address and statuses of repeated requests
    # Without tokens each address has its own rate.
    ([], {"burst": 2}, [(None, "1", [200, 200, 429]), (None, "2", [200])]),
    # Each token has its own rate.
    (
        [READ, OTHER], {"burst": 3},
        [(READ, "1", [200] * 3 + [429] * 2), (OTHER, "1", [200]), (READ, "2", [429])],
    ),
    # Guesses delay all tokens at the address but those that were valid there before.
    (
        [READ, ADMIN], {"wrong_tokens": 5},
        [(READ, "1", [200]), (WRONG, "1", [401] * 5 + [429] * 3), (ADMIN, "1", [429]),
         (READ, "1", [200]), (ADMIN, "2", [200])],
    ),
    # Requests without a token are no guesses, but have a rate.
    (
        [READ], {"wrong_tokens": 2, "burst": 10},
        [(None, "1", [401] * 8), (READ, "1", [200]), (None, "1", [401, 401, 429, 429])],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("valid", "limits", "requests"), RATES)
def test_rates(start: Start, tokens: Path, valid: list[str], limits: Any, requests: Any) -> None:
    tokens.write_text("".join(f"read {token}\n" for token in valid))
    here = start(tokens=tokens if valid else None, limits={"rate_per_s": 0.01, **limits})
    for token, address, statuses in requests:
        headers = {} if token is None else bearer(token)
        for status in statuses:
            answer = here.request("GET", "/v1/systems", headers=headers, address=address)
            assert answer.status == status, (token, address)
            if status == 429:
                wait_s = int(answer.headers["retry-after"])
                assert wait_s == 1 if "burst" not in limits else 90 <= wait_s <= 101
        assert here.request("GET", "/healthz", address=address).status == 200  # not limited


def test_tokens_are_never_written_or_returned(
    start: Start, tokens: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    here = start(tokens=tokens)
    typo = ADMIN[:-1] + "X"
    answers = []
    for token in (READ, ADMIN, typo):
        for method, path, valid in routes_of(here):
            bodies = (valid, b"no json", {"bundle": "/nowhere"})
            answers += [here.request(method, path, body, headers=bearer(token)) for body in bodies]
        answers.append(here.request("GET", "/nowhere", headers=bearer(token)))
        answers.append(here.request("POST", "/v1/unknown/decide", STATE, headers=bearer(token)))
    system = here.service.systems["toy"]
    here.run(system.tick())
    bug = mock.patch.object(system, "status", side_effect=RuntimeError("a bug"))
    with bug, pytest.raises(RuntimeError):
        here.request("GET", "/v1/toy/status", headers=bearer(READ))
    here.close()
    responses = [one.body + repr(one.headers).encode() for one in answers]
    files = [file.read_bytes() for file in (here.folder / "kept").rglob("*") if file.is_file()]
    assert len(files) > 2  # the log, the state, a bundle
    logged = "".join([*capfd.readouterr(), caplog.text]).encode()
    for token in (READ, ADMIN, typo):
        assert not any(token.encode() in text for text in (*responses, *files, logged))
