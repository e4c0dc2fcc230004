"""Tokens, scopes and rate limits, without a service."""

from __future__ import annotations

import hmac
import logging
import os
from pathlib import Path
from unittest import mock

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.serving.http import auth
from loadmaster.serving.http.auth import FailedAuthLimiter, RateLimit, Scope, TokenStore

SECRET, OTHER = "0123456789abcdef-secret", "fedcba9876543210-secret"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text(f"read {SECRET}\n")
    return file


def scopes(store: TokenStore) -> list[Scope | None]:
    """Scopes of SECRET and OTHER; None if the token is not valid."""
    found = (auth.find_principal(store.principals, token) for token in (SECRET, OTHER))
    return [principal and principal.scope for principal in found]


@pytest.mark.parametrize(
    "text",
    [
        f"read {SECRET}\nadmin {OTHER}",
        f"read {SECRET},admin {OTHER}",
        f"\n# a comment of some words\n  read\t{SECRET}  \r\nadmin {OTHER}\n\n",
    ],
)
def test_tokens_are_parsed(text: str) -> None:
    store = TokenStore(None, {auth.TOKENS: text})
    assert scopes(store) == [Scope.READ, Scope.ADMIN]
    for token in (f"{SECRET}x", ""):
        assert auth.find_principal(store.principals, token) is None
    assert SECRET not in repr(store.principals)  # only digests


def test_tokens_of_file_and_environment_are_valid(file: Path) -> None:
    assert scopes(TokenStore(file, {auth.TOKENS: f"admin {OTHER}"})) == [Scope.READ, Scope.ADMIN]
    assert scopes(TokenStore(None, {})) == [None, None]


@pytest.mark.parametrize(
    ("part", "texts"),
    [
        ("line 1", [SECRET, f"write {SECRET}", f"read {SECRET} twice"]),
        ("line 2", [f"\nREAD {SECRET}"]),
        ("too weak", ["read short-secret", f"read {SECRET[:-1]}é"]),
    ],
)
def test_errors_never_repeat_a_token(part: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(InputError, match=part) as fault:
            auth.parse_tokens(text, "here")
        assert "secret" not in str(fault.value)


def test_every_digest_is_compared() -> None:
    principals = auth.parse_tokens(f"read {SECRET}\nread {OTHER}\nadmin {SECRET}{OTHER}", "here")
    for token in (SECRET, OTHER, "unknown"):
        with mock.patch.object(hmac, "compare_digest", wraps=hmac.compare_digest) as compare:
            auth.find_principal(principals, token)
        assert compare.call_count == 3
        assert {len(one) for call in compare.call_args_list for one in call.args} == {32}


@pytest.mark.parametrize("content", [None, b"", b"# none\n", b"read x\n", b"x" * 100_000])
def test_an_unusable_file_is_refused_at_the_start(file: Path, content: bytes | None) -> None:
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(InputError, match=r"expected"):
        TokenStore(file, {})


def test_tokens_are_rotated_without_a_restart(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = TokenStore(file, {})
    assert scopes(store) == [Scope.READ, None]
    fresh = file.with_name("fresh")
    fresh.write_text(f"admin {OTHER}\n")
    fresh.rename(file)
    assert scopes(store) == [None, Scope.ADMIN]
    with caplog.at_level(logging.WARNING):
        for break_it in (
            lambda: file.write_text(""),
            lambda: file.write_text("admin x\n"),
            lambda: file.write_bytes(b"\xff\x00" * 100),
            lambda: file.write_text(f"read {SECRET}\n" * 100_000),
            file.unlink,
            lambda: os.mkfifo(file),  # opening it would block
        ):
            break_it()
            for _ in range(3):
                assert scopes(store) == [None, Scope.ADMIN]  # the old tokens stay valid
    warnings = [one.getMessage() for one in caplog.records if "stay valid" in one.getMessage()]
    assert len(warnings) == 6  # once each
    file.unlink()
    file.write_text(f"read {SECRET}\n")
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
    limit, failures = RateLimit(1.0, 1), FailedAuthLimiter(1)
    principals = auth.parse_tokens("\n".join(f"read {SECRET}{n}" for n in range(12)), "here")
    for number, principal in enumerate(principals):
        limit.wait_s(number, 0.0)
        failures.wait_s("a", principal, 0.0)
    assert limit.would_wait_s(0, 0.0) == 0  # dropped, so its bucket is full again
    assert limit.would_wait_s(11, 0.0) == 1
    failures.wait_s("a", None, 0.0)
    assert failures.wait_s("a", principals[0], 0.0) == 1  # dropped: it must wait like a new one
    assert failures.wait_s("a", principals[11], 0.0) == 0


def test_failed_attempts_delay_new_tokens_only() -> None:
    failures = FailedAuthLimiter(wrong=2)
    known, new = auth.parse_tokens(f"read {SECRET}\nread {OTHER}", "here")
    assert failures.wait_s("a", known, 0.0) == 0
    assert [failures.wait_s("a", None, 0.0) for _ in range(3)] == [0, 0, 1]
    assert failures.wait_s("a", known, 0.0) == 0
    assert failures.wait_s("a", new, 0.0) == 1
    assert failures.wait_s("b", new, 0.0) == 0
    assert failures.wait_s("a", new, 1.0) == 0  # a second later one guess is free
    assert failures.wait_s("a", None, 1.0) == 0  # a valid token does not use it up
    assert failures.wait_s("a", None, 1.0) == 1
