"""Tokens, scopes and rates, without a service."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.serving.http import auth as access
from loadmaster.serving.http.auth import (
    FailedAuthLimiter,
    RateLimit,
    Scope,
    TokenStore,
    bearer,
    parse_tokens,
)

SECRET = "0123456789abcdef-secret"
OTHER = "fedcba9876543210-secret"


@pytest.mark.parametrize(
    "text",
    [
        f"read {SECRET}\nadmin {OTHER}",
        f"read {SECRET},admin {OTHER}",
        f"\n# a comment of many words\n  read\t{SECRET}  \r\nadmin {OTHER}\n\n",
    ],
)
def test_tokens_are_read(text: str) -> None:
    keys = parse_tokens(text, "here")
    assert keys.needed
    read, admin = keys.holder_of(SECRET), keys.holder_of(OTHER)
    assert read is not None
    assert admin is not None
    assert (read.scope, admin.scope) == (Scope.READ, Scope.ADMIN)
    assert keys.holder_of(SECRET + "x") is None
    assert keys.holder_of("") is None


def test_no_tokens_are_needed_where_there_are_none() -> None:
    assert not parse_tokens("# nobody\n", "here").needed
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
def test_faults_never_repeat_a_token(text: str, says: str) -> None:
    with pytest.raises(InputError) as fault:
        parse_tokens(text, "here")
    assert says in str(fault.value)
    assert "secret" not in str(fault.value)


def test_every_key_is_compared_in_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[Any, Any]] = []

    class Watched:
        @staticmethod
        def compare_digest(one: bytes, other: bytes) -> bool:
            compared.append((one, other))
            return hmac.compare_digest(one, other)

    monkeypatch.setattr(access, "hmac", Watched)
    keys = parse_tokens(f"read {SECRET}\nread {OTHER}\nadmin {SECRET}{OTHER}", "here")
    for token in (SECRET, OTHER, "nobody's"):
        compared.clear()
        keys.holder_of(token)
        assert len(compared) == 3
        assert {len(one) for pair in compared for one in pair} == {32}, "digests, not tokens"


def test_tokens_themselves_are_not_kept(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"read {SECRET}\n")
    doorkeeper = TokenStore(file, {access.TOKENS: ""})
    assert SECRET not in repr(vars(doorkeeper))


@pytest.mark.parametrize("content", [None, b"", b"# none\n", b"read x\n", b"x" * 100_000])
def test_a_file_that_is_no_good_at_the_start(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "tokens"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=r"expected"):
        TokenStore(file, {})


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_file_that_others_can_read(tmp_path: Path, mode: int, warns: bool) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"read {SECRET}\n")
    file.chmod(mode)
    warning = access.exposure(file)
    assert (warning is not None) == warns
    assert warning is None or str(file) in warning


@pytest.mark.parametrize(
    ("header", "token"),
    [
        (None, None),
        ("", None),
        ("Bearer", None),
        ("Bearer  ", None),
        ("Basic abc", None),
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
    ],
)
def test_headers(header: str | None, token: str | None) -> None:
    assert bearer(header) == token


def test_a_bucket_fills_with_time() -> None:
    limit = RateLimit(rate=2.0, burst=3)
    assert [limit.wait_s("a", 0.0) for _ in range(4)] == [0, 0, 0, 0.5]
    assert limit.wait_s("b", 0.0) == 0
    assert limit.wait_s("a", 0.25) == 0.25
    assert limit.wait_s("a", 0.5) == 0
    assert limit.wait_s("a", 0.5) > 0
    assert [limit.wait_s("a", 1000.0) for _ in range(4)] == [0, 0, 0, 0.5], "never above the burst"


def test_to_look_is_not_to_take() -> None:
    limit = RateLimit(rate=1.0, burst=1)
    assert [limit.would_wait_s("a", 0.0) for _ in range(3)] == [0, 0, 0]
    limit.wait_s("a", 0.0)
    assert limit.would_wait_s("a", 0.0) == 1
    assert limit.would_wait_s("a", 0.75) == 0.25


def test_few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "ASKERS", 10)
    limit, brake = RateLimit(1.0, 1), FailedAuthLimiter(1000)
    holders = parse_tokens("\n".join(f"read {SECRET}{n}" for n in range(50)), "here").holders
    for number, holder in enumerate(holders):
        limit.wait_s(number, 0.0)
        brake.wait_s("a", holder, 0.0)
    assert len(limit._left) == len(brake._familiar) == 10


def test_the_brake() -> None:
    brake = FailedAuthLimiter(wrong=2)
    (familiar, new) = parse_tokens(f"read {SECRET}\nread {OTHER}", "here").holders
    assert brake.wait_s("a", familiar, 0.0) == 0
    assert [brake.wait_s("a", None, 0.0) for _ in range(3)] == [0, 0, 1]
    assert brake.wait_s("a", familiar, 0.0) == 0
    assert brake.wait_s("a", new, 0.0) == 1
    assert brake.wait_s("b", new, 0.0) == 0
    assert brake.wait_s("a", new, 1.0) == 0, "a second later one guess is free"
    assert brake.wait_s("a", None, 1.0) == 0, "which a right one does not use up"
    assert brake.wait_s("a", None, 1.0) == 1
