"""The breaker on the way to a worker."""

from __future__ import annotations

from loadmaster.serving.decisions.decide import CircuitBreaker


def test_a_breaker_opens_after_failures_in_a_row() -> None:
    breaker = CircuitBreaker(failures=3, retry_s=1.0)
    for _ in range(2):
        breaker.failed(0.0)
    breaker.succeeded()
    for _ in range(2):
        breaker.failed(0.0)
    assert not breaker.is_open
    assert breaker.lets_through(0.0)
    breaker.failed(0.0)
    assert breaker.is_open


def test_an_open_breaker_tries_again_now_and_then() -> None:
    breaker = CircuitBreaker(failures=1, retry_s=1.0)
    breaker.failed(10.0)
    assert [breaker.lets_through(t) for t in (10.0, 10.9, 11.0, 11.1, 11.9, 12.0)] == [
        False, False, True, False, False, True,
    ]  # fmt: skip
    breaker.failed(12.0)
    assert not breaker.lets_through(12.5)
    assert breaker.lets_through(13.0)
    breaker.succeeded()
    assert not breaker.is_open
    assert breaker.lets_through(13.0)
