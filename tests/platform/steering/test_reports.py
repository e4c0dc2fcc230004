"""Reports to the service: only what has changed, never in the way of a step."""

import threading
import time
from collections.abc import Mapping

from loadmaster.platform.steering.core import StepResult
from loadmaster.platform.steering.reports import REPEAT_S, ServiceReports
from loadmaster.serving.client import Client, ServiceError


class Recorded(Client):
    """A client that keeps reports; while `down` it fails."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, str, str]] = []
        self.down = False
        self.begun, self.free = threading.Event(), threading.Event()
        self.free.set()

    def steering(  # type: ignore[override]
        self, system: str, engine: str, mode: str, result: str, line: str, *, tenant: str
    ) -> Mapping[str, object]:
        self.begun.set()
        self.free.wait()
        if self.down:
            raise ServiceError("no service")
        assert (system, engine, mode) == ("das", "slurm", "act")
        self.sent.append((tenant, result, line))
        return {"accepted": True}


def step(application: str, result: str = "unchanged", reason: str = "") -> StepResult:
    return StepResult(application, result, reason)  # type: ignore[arg-type]


def test_changes_are_sent_at_once_and_the_same_after_a_while() -> None:
    client, now = Recorded(), [0.0]
    reports = ServiceReports(client, "das", "slurm", "act", None, lambda: now[0])
    for at, result in ((0, "unchanged"), (1, "unchanged"), (2, "acted"), (3, "acted")):
        now[0] = at
        reports.record(step("gpu", result))
        reports.send()
    assert [result for _, result, _ in client.sent] == ["unchanged", "acted"]
    now[0] = 2 + REPEAT_S
    reports.record(step("gpu", "acted"))
    reports.record(step("a/b"))
    reports.send()
    (_, again, line), (tenant, _, _) = client.sent[2:]
    assert (again, line) == ("acted", step("gpu", "acted").line().removeprefix("gpu acted: "))
    assert tenant.startswith("a.b-")


def test_failed_report_is_sent_with_the_next_step() -> None:
    client = Recorded()
    reports = ServiceReports(client, "das", "slurm", "act", "mine", time.monotonic)
    client.down = True
    reports.record(step("gpu"))
    reports.send()
    client.down = False
    reports.record(step("gpu"))
    reports.send()
    assert client.sent == [("mine", "unchanged", "no change; ")]


def test_a_slow_service_delays_no_step_and_the_last_result_is_sent_at_the_end() -> None:
    client = Recorded()
    client.free.clear()
    with ServiceReports(client, "das", "slurm", "act", None, time.monotonic) as reports:
        reports.record(step("gpu"))
        assert client.begun.wait(30)
        began = time.monotonic()
        for place in range(100):
            reports.record(step("gpu", reason=f"reason {place}"))
        assert time.monotonic() - began < 1
        client.free.set()
    assert [line for _, _, line in client.sent][-1].endswith("reason 99")
    assert len(client.sent) <= 3
