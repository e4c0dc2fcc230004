"""Access control: tokens, scopes and rates, alone and over all routes; secrecy of tokens."""

import hmac
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from starlette.routing import Route

from loadmaster.envs.errors import InputError
from loadmaster.serving.http import auth, known_callers
from loadmaster.serving.http.auth import FailedAuthLimiter, RateLimit, Scope, TokenStore
from loadmaster.serving.http.known_callers import KnownCallers
from loadmaster.serving.http.routes import PUBLIC
from loadmaster.serving.policies.manager import AdminAction
from tests.serving.conftest import LocalService, Start

READ, ADMIN, OTHER = "read-0123456789abcdef", "admin-0123456789abcdef", "other-0123456789abcdef"
WRONG = "wrong-0123456789abcdef"
LOCAL, EVIL = "127.0.0.1:8700", "evil.example"
ESTIMATE = {"mean": 2.0, "lower": 1.0, "source": "fqe", "episodes": 3}
MEMORY = {"memory": {"f-1": [1.0]}}
STATE = {"state": {"load": 42, "replicas": 3}}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text(f"# comment\nread {READ}\nadmin {ADMIN}\n")
    return file


def scopes(store: TokenStore) -> list[Scope | None]:
    """Scopes of READ and OTHER; None if the token is not valid."""
    found = (auth.find_principal(store.principals, token) for token in (READ, OTHER))
    return [principal and principal.scope for principal in found]


@pytest.mark.parametrize(
    "text",
    [
        f"read {READ}\nadmin {OTHER}",
        f"read {READ},admin {OTHER}",
        f"\n# a comment of some words\n  read\t{READ}  \r\nadmin {OTHER}\n\n",
    ],
)
def test_tokens_are_parsed(text: str) -> None:
    store = TokenStore(None, {auth.TOKENS: text})
    assert scopes(store) == [Scope.READ, Scope.ADMIN]
    for token in (f"{READ}x", ""):
        assert auth.find_principal(store.principals, token) is None
    assert READ not in repr(store.principals)  # only digests


def test_tokens_of_file_and_environment_are_valid(tokens: Path) -> None:
    assert scopes(TokenStore(tokens, {auth.TOKENS: f"admin {OTHER}"})) == [Scope.READ, Scope.ADMIN]
    assert scopes(TokenStore(None, {})) == [None, None]


@pytest.mark.parametrize(
    ("part", "texts"),
    [
        ("line 1", [READ, f"write {READ}", f"read {READ} twice"]),
        ("line 2", [f"\nREAD {READ}"]),
        ("too weak", ["read short-01234", f"read {READ[:-1]}é"]),
    ],
)
def test_errors_never_repeat_a_token(part: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(InputError, match=part) as fault:
            auth.parse_tokens(text, "here")
        assert "01234" not in str(fault.value)


def test_every_digest_is_compared() -> None:
    principals = auth.parse_tokens(f"read {READ}\nread {OTHER}\nadmin {READ}{OTHER}", "here")
    for token in (READ, OTHER, "unknown"):
        with mock.patch.object(hmac, "compare_digest", wraps=hmac.compare_digest) as compare:
            auth.find_principal(principals, token)
        assert compare.call_count == 3
        assert {len(one) for call in compare.call_args_list for one in call.args} == {32}


@pytest.mark.parametrize("content", [None, b"", b"# none\n", b"read x\n", b"x" * 100_000])
def test_an_unusable_file_is_refused_at_the_start(tokens: Path, content: bytes | None) -> None:
    tokens.unlink() if content is None else tokens.write_bytes(content)
    with pytest.raises(InputError, match=r"expected"):
        TokenStore(tokens, {})


def test_tokens_are_rotated_at_once(tokens: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = TokenStore(tokens, {})
    assert scopes(store) == [Scope.READ, None]
    fresh = tokens.with_name("fresh")
    fresh.write_text(f"admin {OTHER}\n")
    fresh.rename(tokens)
    assert scopes(store) == [None, Scope.ADMIN]
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
                assert scopes(store) == [None, Scope.ADMIN]  # the old tokens stay valid
    warnings = [one.getMessage() for one in caplog.records if "stay valid" in one.getMessage()]
    assert len(warnings) == 6  # once each
    tokens.unlink()
    tokens.write_text(f"read {READ}\n")
    assert scopes(store) == [Scope.READ, None]


def test_a_bucket_refills_with_time() -> None:
    limit = RateLimit(rate=2.0, burst=3)
    assert [limit.wait_s("a", 0.0) for _ in range(4)] == [0, 0, 0, 0.5]
    assert limit.wait_s("b", 0.0) == 0
    assert [limit.would_wait_s("a", 0.25) for _ in range(3)] == [0.25] * 3  # counts nothing
    assert limit.wait_s("a", 0.25) == 0.25
    assert limit.wait_s("a", 0.5) == 0
    assert limit.wait_s("a", 0.5) > 0
    assert [limit.wait_s("a", 1000.0) for _ in range(4)] == [0, 0, 0, 0.5]  # at most the burst


def test_the_number_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MAX_CLIENTS", 10)
    monkeypatch.setattr(known_callers, "MAX_CALLERS", 10)
    limit, failures = RateLimit(1.0, 1), FailedAuthLimiter(1, KnownCallers())
    principals = auth.parse_tokens("\n".join(f"read {READ}{n}" for n in range(12)), "here")
    for number, principal in enumerate(principals):
        limit.wait_s(number, 0.0)
        failures.wait_s("a", principal, 0.0)
    assert limit.would_wait_s(0, 0.0) == 0  # dropped, so its bucket is full again
    assert limit.would_wait_s(11, 0.0) == 1
    failures.wait_s("a", None, 0.0)
    assert failures.wait_s("a", principals[0], 0.0) == 1  # dropped: it must wait like a new one
    assert failures.wait_s("a", principals[11], 0.0) == 0


def test_failed_attempts_delay_new_tokens_only() -> None:
    failures = FailedAuthLimiter(2, KnownCallers())
    known, new = auth.parse_tokens(f"read {READ}\nread {OTHER}", "here")
    assert failures.wait_s("a", known, 0.0) == 0
    assert [failures.wait_s("a", None, 0.0) for _ in range(3)] == [0, 0, 1]
    assert failures.wait_s("a", known, 0.0) == 0
    assert failures.wait_s("a", new, 0.0) == 1
    assert failures.wait_s("b", new, 0.0) == 0
    assert failures.wait_s("a", new, 1.0) == 0  # a second later one guess is free
    assert failures.wait_s("a", None, 1.0) == 0  # a valid token does not use it up
    assert failures.wait_s("a", None, 1.0) == 1


def routes_of(here: LocalService, public: bool = True) -> Iterator[tuple[str, str, Any]]:
    """Method, path and a valid body of every route, or of those that are not public."""
    for route in here.service.app.routes:
        assert isinstance(route, Route), f"{route} is not covered by these tests"
        verb = route.path.rpartition("/")[2]
        feedback = {"outcome": {"reward": 1.0}}
        steering = {"engine": "slurm", "mode": "act", "result": "acted"}
        bodies = {
            "decide": STATE, "feedback": feedback, "steering": steering,
            "estimate": ESTIMATE, "memory": MEMORY,
        }  # fmt: skip
        body = bodies.get(verb)
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
    """From any host and origin, and however the header is spaced and spelt."""
    here = start(tokens=tokens)
    headers = {"Host": "loadmaster.example", "Origin": "https://elsewhere.example"}
    seen = []
    for token, scope, allowed in ((f" {READ}", "read", 403), (f"{ADMIN} ", "admin", 200)):
        headers["Authorization"] = f"BEARER {token}"
        service = here.request("GET", "/v1/systems", headers=headers).json["service"]
        assert (service["tokens"], service["scope"]) == (True, scope)
        for method, path, body in routes_of(here, public=False):
            verb, expected = path.rpartition("/")[2], 200
            if verb in list(AdminAction):
                seen.append(verb)
                conflicts = allowed == 200 and verb in ("promote", "rollback")
                expected = 409 if conflicts else allowed
            answer = here.request(method, path, body, headers=headers)
            assert answer.status == expected, (method, path, answer)
    assert sorted(seen) == sorted([*AdminAction] * 2)


def test_other_hosts_and_origins_are_refused_without_tokens(start: Start) -> None:
    """A web page in a browser on this machine must not be able to pause the service."""
    here = start()
    refused: list[Any] = [
        *({"Host": host} for host in ("", EVIL, f"{EVIL}:8700", f"127.0.0.1.{EVIL}")),
        *({"Host": host} for host in ("10.0.0.7:8700", "0.0.0.0:8700", "[2001:db8::1]:8700")),
        *(
            {"Host": f"127.0.0.1{rest}"}
            for rest in (f":80@{EVIL}", ":80:90", ":", ":8x", "/", " x")
        ),
        *({"Host": host} for host in (f"{EVIL}@127.0.0.1", "::1", "[::1]x", "[127.0.0.1]", "[::1")),
        [("Host", LOCAL), ("Host", EVIL)],
        [("Host", LOCAL), ("Host", LOCAL)],
        {"Host": f"{LOCAL}, {EVIL}"},
        [("Host", LOCAL), ("Origin", f"http://{LOCAL}"), ("Origin", f"http://{EVIL}")],
        {"Host": LOCAL, "Origin": f"http://{EVIL}"},
        {"Host": LOCAL, "Origin": "http://127.0.0.1:3000"},
        {"Host": LOCAL, "Origin": "null"},
        {"Host": "localhost:8700", "Origin": f"http://{LOCAL}"},
    ]
    for headers in refused:
        for method, path, body in routes_of(here, public=False):
            answer = here.request(method, path, body, headers=headers)
            assert answer.status == 403, (headers, method, path, answer)
    assert here.request("GET", "/v1/systems", host=None).status == 403
    assert not here.status()["paused"]
    for headers in [
        *({"Host": host} for host in (LOCAL, "localhost", "LocalHost:1", "[::1]:8700", "[::1]")),
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
    here.run(here.service.tick())
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
