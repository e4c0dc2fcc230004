"""Tokens, scopes and rate limits, without a service."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.serving.http import auth
from loadmaster.serving.http.auth import (
    FailedAuthLimiter,
    RateLimit,
    Scope,
    TokenStore,
    parse_tokens,
)

SECRET = "0123456789abcdef-secret"
OTHER = "fedcba9876543210-secret"


@pytest.mark.parametrize(
    "text",
    [
        f"read {SECRET}\nadmin {OTHER}",
        f"read {SECRET},admin {OTHER}",
        f"\n# a comment of some words\n  read\t{SECRET}  \r\nadmin {OTHER}\n\n",
    ],
)
def test_tokens_are_parsed(text: str) -> None:
    keys = parse_tokens(text, "here")
    assert keys.needed
    read, admin = keys.find(SECRET), keys.find(OTHER)
    assert read is not None
    assert admin is not None
    assert (read.scope, admin.scope) == (Scope.READ, Scope.ADMIN)
    assert keys.find(SECRET + "x") is None
    assert keys.find("") is None


def test_no_tokens_are_needed_without_any() -> None:
    assert not parse_tokens("# none\n", "here").needed
    assert not TokenStore(None, {}).keys.needed


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SECRET, "line 1"),
        (f"write {SECRET}", "line 1"),
        (f"\nREAD {SECRET}", "line 2"),
        (f"read {SECRET} twice", "line 1"),
        ("read short-secret", "too weak"),
        (f"read {SECRET[:-1]}é", "too weak"),
    ],
)
def test_errors_never_repeat_a_token(text: str, says: str) -> None:
    with pytest.raises(InputError) as fault:
        parse_tokens(text, "here")
    assert says in str(fault.value)
    assert "secret" not in str(fault.value)


def test_every_digest_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[Any, Any]] = []

    class Recorder:
        @staticmethod
        def compare_digest(one: bytes, other: bytes) -> bool:
            compared.append((one, other))
            return hmac.compare_digest(one, other)

    monkeypatch.setattr(auth, "hmac", Recorder)
    keys = parse_tokens(f"read {SECRET}\nread {OTHER}\nadmin {SECRET}{OTHER}", "here")
    for token in (SECRET, OTHER, "unknown"):
        compared.clear()
        keys.find(token)
        assert len(compared) == 3
        assert {len(one) for pair in compared for one in pair} == {32}  # digests, not tokens


def test_only_digests_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"read {SECRET}\n")
    store = TokenStore(file, {auth.TOKENS: ""})
    assert SECRET not in repr(vars(store))


@pytest.mark.parametrize("content", [None, b"", b"# none\n", b"read x\n", b"x" * 100_000])
def test_an_unusable_file_is_refused_at_the_start(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "tokens"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=r"expected"):
        TokenStore(file, {})


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_file_that_others_can_read_causes_a_warning(
    tmp_path: Path, mode: int, warns: bool
) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"read {SECRET}\n")
    file.chmod(mode)
    warning = auth.file_warning(file)
    assert (warning is not None) == warns
    assert warning is None or str(file) in warning


def test_a_bucket_refills_with_time() -> None:
    limit = RateLimit(rate=2.0, burst=3)
    assert [limit.wait_s("a", 0.0) for _ in range(4)] == [0, 0, 0, 0.5]
    assert limit.wait_s("b", 0.0) == 0
    assert limit.wait_s("a", 0.25) == 0.25
    assert limit.wait_s("a", 0.5) == 0
    assert limit.wait_s("a", 0.5) > 0
    assert [limit.wait_s("a", 1000.0) for _ in range(4)] == [0, 0, 0, 0.5]  # at most the burst


def test_would_wait_counts_nothing() -> None:
    limit = RateLimit(rate=1.0, burst=1)
    assert [limit.would_wait_s("a", 0.0) for _ in range(3)] == [0, 0, 0]
    limit.wait_s("a", 0.0)
    assert limit.would_wait_s("a", 0.0) == 1
    assert limit.would_wait_s("a", 0.75) == 0.25


def test_the_number_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MAX_CLIENTS", 10)
    limit, failures = RateLimit(1.0, 1), FailedAuthLimiter(1)
    principals = parse_tokens("\n".join(f"read {SECRET}{n}" for n in range(12)), "here").principals
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
    known, new = parse_tokens(f"read {SECRET}\nread {OTHER}", "here").principals
    assert failures.wait_s("a", known, 0.0) == 0
    assert [failures.wait_s("a", None, 0.0) for _ in range(3)] == [0, 0, 1]
    assert failures.wait_s("a", known, 0.0) == 0
    assert failures.wait_s("a", new, 0.0) == 1
    assert failures.wait_s("b", new, 0.0) == 0
    assert failures.wait_s("a", new, 1.0) == 0  # a second later one guess is free
    assert failures.wait_s("a", None, 1.0) == 0  # a valid token does not use it up
    assert failures.wait_s("a", None, 1.0) == 1
