"""When a request is sent again, and when not."""

from __future__ import annotations

import random

import pytest

from loadmaster.serving.client.errors import DeadlineExceeded, ServiceError, Unreachable
from loadmaster.serving.client.http1 import Answer, BrokenError, MalformedError, Request
from loadmaster.serving.client.retry import Attempts

ASK, ACT = Request("GET", "/"), Request("POST", "/", b"{}", repeat=False)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def attempts(
    request: Request = ASK, deadline_s: float = 1.0, retries: int = 3, clock: Clock | None = None
) -> Attempts:
    return Attempts("http://x", request, deadline_s, retries, clock or Clock(), random.Random(7))


def answered(status: int, retry_after: str | None = None) -> Answer:
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return Answer(status, headers, b"", keep=True)


def test_pauses_double_and_are_spread() -> None:
    for seed in range(50):
        made = Attempts("http://x", ASK, 100.0, 8, Clock(), random.Random(seed))
        pauses = [made.after_answer(answered(503)) for _ in range(8)]
        for number, pause in enumerate(pauses):
            longest = min(1.0, 0.02 * 2**number)
            assert pause is not None
            assert longest / 2 <= pause <= longest
        assert made.after_answer(answered(503)) is None, "no more attempts"


@pytest.mark.parametrize("status", [200, 400, 401, 404, 409, 413, 422, 500])
def test_other_answers_stand(status: int) -> None:
    assert attempts().after_answer(answered(status)) is None


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_what_is_repeated(status: int) -> None:
    assert attempts().after_answer(answered(status)) is not None
    assert attempts(ACT).after_answer(answered(status)) is None


def test_the_service_says_when() -> None:
    pause = attempts(deadline_s=10).after_answer(answered(429, "3"))
    assert pause is not None
    assert 3.01 <= pause <= 3.02
    assert attempts(deadline_s=2).after_answer(answered(429, "3")) is None, "not worth waiting for"


@pytest.mark.parametrize("odd", ["soon", "-5", "nan", "inf", "Wed, 21 Oct 2026 07:28:00 GMT", ""])
def test_odd_wishes_get_the_ordinary_pause(odd: str) -> None:
    pause = attempts().after_answer(answered(429, odd))
    assert pause is not None
    assert 0.01 <= pause <= 0.02


def test_faults() -> None:
    before, after = BrokenError("refused", sent=False), BrokenError("reset", sent=True)
    assert attempts().after_fault(before) > 0
    assert attempts().after_fault(after) > 0
    assert attempts(ACT).after_fault(before) > 0
    with pytest.raises(Unreachable, match=r"cannot reach http://x: reset; whether .* not known"):
        attempts(ACT).after_fault(after)
    with pytest.raises(Unreachable, match=r"^cannot reach http://x: refused$"):
        attempts(retries=0).after_fault(before)
    with pytest.raises(ServiceError, match="cannot be read: no HTTP"):
        attempts().after_fault(MalformedError("no HTTP"))
    with pytest.raises(DeadlineExceeded, match="no answer from http://x within 1 s"):
        attempts().after_fault(TimeoutError())


def test_one_deadline_for_all_of_it() -> None:
    clock = Clock()
    made = attempts(clock=clock)
    clock.now += 0.9
    assert made.left_s() == pytest.approx(0.1)
    clock.now += 0.095
    with pytest.raises(Unreachable):
        made.after_fault(BrokenError("refused", sent=False))  # the pause would outlast it
    clock.now += 0.1
    with pytest.raises(DeadlineExceeded):
        made.left_s()
