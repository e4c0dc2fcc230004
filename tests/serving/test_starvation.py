"""Timeouts while a process is starved do not count; those of a slow policy do."""

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tests.serving.live import LATEST, Pressure, Sample
from tests.serving.starvation import LATER_S, SAMPLE_S, Starvation, Steal


class Scripted(Starvation):
    """Threads with the given waits, in milliseconds, at each sample."""

    def __init__(self, waited_ms: Iterable[Mapping[str, float]]) -> None:
        super().__init__(0)
        self._script = iter(list(waited_ms))

    def _waited(self) -> dict[str, int]:
        return {name: int(1e6 * ms) for name, ms in next(self._script).items()}


def watched(at_s: Mapping[float, float], until_s: float) -> Scripted:
    """A thread that has waited so many milliseconds in all from those times on."""
    times = [SAMPLE_S * number for number in range(round(until_s / SAMPLE_S))]
    total = [sum(ms for since, ms in at_s.items() if since <= now + 1e-9) for now in times]
    found = Scripted({"main": ms, "idle": 0.0} for ms in total)
    for now in times:
        found.sample(now)
    return found


def test_wait_is_found_though_it_is_known_later() -> None:
    one = watched({0.8: 600}, until_s=1.2)  # from 0.2 to 0.8
    assert one.ms(0.1, 0.6) == pytest.approx(400)
    assert one.ms(0.3, 0.9) == pytest.approx(500)
    assert one.ms(0.85, 1.0) == 0.0


def test_short_waits_add_up() -> None:
    one = watched({0.4: 10, 0.8: 20, 1.2: 30}, until_s=2.0)
    assert one.ms(0.3, 0.85) == pytest.approx(30)
    assert one.ms(0.0, 2.0) == pytest.approx(60)


def test_wait_long_after_the_end_is_not_looked_for() -> None:
    assert watched({LATER_S + 1.0: 5000}, until_s=LATER_S + 2.0).ms(0.1, 0.3) == 0.0


def test_steal_is_read_for_each_processor() -> None:
    steal = Steal()
    steal.sample(0.0)
    steal.sample(1.0)
    assert steal.ms(0.0, 1.0) >= 0.0


def pressure(causes: Iterable[str | None], starved: bool) -> Any:
    """Responses, one every 100 ms, while the worker is starved all the time or never."""
    load: Any = Pressure.__new__(Pressure)
    load._known = {}
    load._samples = [
        Sample(number / 10, 500.0, {}, SimpleNamespace(cause=cause), "")  # type: ignore[arg-type]
        for number, cause in enumerate(causes)
    ]
    load._worker = SimpleNamespace(ms=lambda *_: 400.0 if starved else 20.0)
    load._gateway = load._steal = SimpleNamespace(ms=lambda *_: 0.0)
    return load


STALL: list[str | None] = [*[None] * 60, *["timeout"] * 11, *["breaker open"] * 8]


def test_a_stall_counts_only_if_nothing_explains_it() -> None:
    assert pressure(STALL, starved=True).counted() == {None: 60}
    pressure(STALL, starved=True).check_chiefly(None)
    with pytest.raises(AssertionError, match="breaker open"):
        pressure(STALL, starved=False).check_chiefly(None)


def test_other_causes_always_count() -> None:
    with pytest.raises(AssertionError, match="not finite"):
        pressure([*[None] * 60, *["not finite"] * 20], starved=True).check_chiefly(None)
    with pytest.raises(AssertionError, match="worker down"):
        pressure([*[None] * 90, "worker down"], starved=True).check_chiefly(None)


def test_too_few_responses_that_count_are_a_failure() -> None:
    slow = [*[None] * LATEST, *["timeout"] * (LATEST + 1)]
    with pytest.raises(AssertionError, match="timeout"):
        pressure(slow, starved=True).check_chiefly(None)
