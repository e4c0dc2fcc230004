"""Which failures are retried, after which pauses, and within which deadline."""

import random

import pytest

from loadmaster.serving.client.errors import DeadlineExceeded, Unreachable
from loadmaster.serving.client.http1 import BrokenError, Request, Response
from loadmaster.serving.client.retry import RetryPolicy
from tests.serving.client.conftest import Clock

READ, WRITE = Request("GET", "/"), Request("POST", "/", b"{}", idempotent=False)
UNSENT, SENT = BrokenError("refused", sent=False), BrokenError("reset", sent=True)


def policy(
    request: Request = READ, deadline_s: float = 1.0, retries: int = 3, seed: int = 7
) -> RetryPolicy:
    rng = random.Random(seed)
    return RetryPolicy("http://x", request, deadline_s, retries, Clock(), rng)


def response(status: int, retry_after: str = "0") -> Response:
    return Response(status, {"retry-after": retry_after}, b"", keep=True)


def test_pauses_double_with_jitter_until_retries_run_out() -> None:
    for seed in range(50):
        made = policy(deadline_s=100.0, retries=8, seed=seed)
        for number in range(8):
            longest = min(1.0, 0.02 * 2**number)
            pause = made.after_response(response(503))
            assert pause is not None
            assert longest / 2 <= pause <= longest
        assert made.after_response(response(503)) is None


@pytest.mark.parametrize("status", [200, 400, 401, 404, 409, 413, 422, 500, 429, 502, 503, 504])
def test_transient_status_is_retried_if_idempotent(status: int) -> None:
    is_transient = status in (429, 502, 503, 504)
    assert (policy().after_response(response(status)) is not None) == is_transient
    assert policy(WRITE).after_response(response(status)) is None


def test_retry_after_is_honoured_within_the_deadline() -> None:
    pause = policy(deadline_s=10).after_response(response(429, "3"))
    assert pause == pytest.approx(3.015, abs=0.005)
    assert policy(deadline_s=2).after_response(response(429, "3")) is None
    for invalid in ("soon", "-5", "nan", "inf", "Wed, 21 Oct 2026 07:28:00 GMT", ""):
        pause = policy().after_response(response(429, invalid))
        assert pause == pytest.approx(0.015, abs=0.005)


def test_broken_connection_is_retried_if_safe() -> None:
    for request, fault in ((READ, UNSENT), (READ, SENT), (WRITE, UNSENT)):
        assert policy(request).after_error(fault) > 0
    with pytest.raises(Unreachable, match="may have been carried out"):
        policy(WRITE).after_error(SENT)
    with pytest.raises(Unreachable, match=r"^cannot reach http://x: refused$"):
        policy(retries=0).after_error(UNSENT)


def test_deadline_covers_all_attempts() -> None:
    made, clock = policy(), Clock()
    made.clock = clock
    clock.now = 0.9
    assert made.remaining_s() == pytest.approx(0.1)
    clock.now = 0.995
    with pytest.raises(Unreachable):
        made.after_error(UNSENT)  # the pause would exceed the deadline
    clock.now = 1.1
    with pytest.raises(DeadlineExceeded):
        made.remaining_s()
