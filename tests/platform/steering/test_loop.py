"""The loop: once, repeated, wrong input, faults of one application, metrics."""

import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import replace

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.core import Engine, SilentError, Steerer, StepResult
from loadmaster.platform.steering.loop import ALL, SteeringMetrics, metrics_server, steer
from tests.platform.steering.test_core import Cluster, Fixed

STEERER = Steerer(Fixed(replicas=6, cpu_m=600), mode="act")


class Broken(Cluster):
    """An engine whose step fails."""

    application = "shop/broken"

    def __init__(self, fault: Exception) -> None:
        super().__init__()
        self.fault = fault

    def read(self) -> None:  # type: ignore[override]
        raise self.fault


class Rounds:
    """Applications of each round, and the results; stops after the last round."""

    def __init__(self, *rounds: Sequence[Engine] | Exception) -> None:
        self.rounds, self.results = list(rounds), list[StepResult]()
        self.stopped = threading.Event()

    def applications(self) -> Sequence[Engine]:
        found = self.rounds.pop(0)
        if not self.rounds:
            self.stopped.set()
        if isinstance(found, Exception):
            raise found
        return found

    def run(self, every_s: float | None, strict: bool = True) -> bool:
        return steer(self.applications, STEERER, self.results.append, every_s, strict, self.stopped)


def test_once_steps_every_application() -> None:
    rounds = Rounds([Cluster(), Cluster()])
    assert not rounds.run(None)
    assert [one.result for one in rounds.results] == ["acted", "acted"]


def test_loop_repeats_until_it_is_stopped() -> None:
    cluster = Cluster()
    rounds = Rounds([cluster], [cluster], [cluster])
    assert not rounds.run(0.01)
    assert len(rounds.results) == 3


def test_wrong_input_ends_only_the_first_round() -> None:
    first = Rounds([Broken(InputError("SLO is 0")), Cluster()])
    with pytest.raises(InputError):
        first.run(None)
    assert [one.result for one in first.results] == ["acted"]  # the others are steered
    later = Rounds([Cluster()], [Broken(InputError("SLO is 0")), Cluster()])
    assert later.run(0.01)
    assert [one.result for one in later.results[1:]] == ["invalid", "acted"]


def test_fault_of_one_application_does_not_stop_the_others() -> None:
    rounds = Rounds([Broken(ZeroDivisionError("bug")), Cluster()])
    assert rounds.run(None)
    assert [one.result for one in rounds.results] == ["silent", "acted"]


@pytest.mark.parametrize(
    "fault", [SilentError("engine", "no list"), InputError("none"), KeyError("bug")]
)
def test_list_that_fails_later_is_reported(fault: Exception) -> None:
    rounds = Rounds([Cluster()], fault)
    assert rounds.run(0.01)
    assert rounds.results[-1].degraded


def test_clock_that_is_set_back_is_not_waited_for() -> None:
    cluster, times = Cluster(), iter([5000.0, 5000.0])
    rounds = Rounds([cluster], [cluster], [cluster])
    results, clock = rounds.results, lambda: next(times, 10.0)
    steer(rounds.applications, STEERER, results.append, 0.01, True, rounds.stopped, clock)
    assert len(results) == 3


def test_degradation_is_that_of_the_last_round() -> None:
    rounds = Rounds([Broken(SilentError("engine", "down"))], [Cluster()])
    assert not rounds.run(0.01)


def test_metrics_over_http() -> None:
    metrics = SteeringMetrics()
    good = STEERER.step(Cluster(), 0.0)
    now_s = time.time()
    metrics.record(good, now_s)
    metrics.record(StepResult('shop/"b"', "silent", "down", silent="metrics"), now_s)
    with metrics_server(metrics, "127.0.0.1", 0) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        with pytest.raises(InputError), metrics_server(metrics, "127.0.0.1", port):
            pass
    assert 'loadmaster_steer_steps_total{application="shop/cart",result="acted"} 1' in lines
    assert 'loadmaster_steer_degraded{application="shop/\\"b\\""} 1' in lines
    assert 'loadmaster_steer_degraded{application="shop/cart"} 0' in lines
    assert 'loadmaster_steer_wanted{application="shop/cart",quantity="replicas"} 6' in lines
    name = "loadmaster_steer_last_good_step_timestamp_seconds"
    assert f'{name}{{application="shop/cart"}} {now_s:.3f}' in lines
    assert not any(line.startswith(f'{name}{{application="shop/\\"') for line in lines)


def test_metrics_leave_out_applications_that_have_ended() -> None:
    metrics = SteeringMetrics(kept_s=60.0)
    good = STEERER.step(Cluster(), 0.0)
    metrics.record(good, 100.0)
    metrics.record(StepResult(ALL, "silent", "down", silent="engine"), 110.0)
    assert '_degraded{application="*"} 1' in metrics.text(110.0)
    metrics.record(replace(good, application="other"), 120.0)
    text = metrics.text(160.0)
    assert '_degraded{application="*"}' not in text  # listed again
    assert '_steps_total{application="*",result="silent"} 1' in text
    assert good.application in text
    assert good.application not in metrics.text(161.0)
    assert 'application="other"' in metrics.text(161.0)
