"""Figures of the simulator of pods, and its p99 beside a request-level model."""

import pytest

from loadmaster.envs.pod_scaling.applications import compose
from loadmaster.platform.bench import pod_scaling
from loadmaster.platform.bench.simpy_pods import RequestSimulation

Patch = pytest.MonkeyPatch


def test_speeds_without_a_peer(monkeypatch: Patch) -> None:
    monkeypatch.setattr(pod_scaling, "STEPS", 500)
    monkeypatch.setattr(pod_scaling, "VECTOR_STEPS", 50)
    monkeypatch.setattr(pod_scaling, "find_spec", lambda name: None)
    lines: list[str] = []
    figures = list(pod_scaling.measure(lines.append))
    names = [f"pod_scaling/{rule}/app_steps_per_s" for rule in ("static", "hpa", "mpa", "random")]
    assert [figure.name for figure in figures] == [*names, "pod_scaling/vector-64/steps_per_s"]
    assert all(figure.value > 10_000 and figure.peer is None for figure in figures)
    assert "loadmaster[bench]" in lines[0]


def test_simpy_is_a_thousand_times_slower(monkeypatch: Patch) -> None:
    pytest.importorskip("simpy")
    monkeypatch.setattr(pod_scaling, "SIMPY_S", 60.0)
    monkeypatch.setattr(pod_scaling, "STEPS", 1000)
    figure = next(pod_scaling.measure(print))
    assert (figure.ratio or 0) > 1000


@pytest.mark.slow
@pytest.mark.parametrize("discipline", ["ps", "fcfs"])
@pytest.mark.parametrize(("load", "seconds"), [(0.5, 600), (0.8, 1600)])
def test_p99_is_that_of_every_request(discipline: str, load: float, seconds: float) -> None:
    pytest.importorskip("simpy")
    own, requests = pod_scaling.compare_p99(discipline, load, seconds, (1,))
    assert own == pytest.approx(requests, rel=0.05)


@pytest.mark.slow
def test_p99_of_the_shorter_of_two_queues_is_near_that_of_every_request() -> None:
    pytest.importorskip("simpy")
    own, requests = pod_scaling.compare_p99("fcfs", 0.65, 800, (1, 2), "two-choices")
    at_random, _ = pod_scaling.compare_p99("fcfs", 0.65, 10, (1,))
    assert own == pytest.approx(requests, rel=0.08)
    assert at_random > 1.7 * requests


@pytest.mark.parametrize("discipline", ["ps", "fcfs"])
def test_requests_without_load_take_their_own_time(discipline: str) -> None:
    pytest.importorskip("simpy")
    application = compose(["sleep"])
    model = RequestSimulation(application, 0.5, 3, 0.5, discipline, 0)
    model.run(2000)
    mean = sum(model.latencies_s) / len(model.latencies_s)
    assert mean == pytest.approx(application.io_s + application.cpu_s / 0.5, rel=0.02)
