"""The GPU simulator's benchmark: what it measures, and under which name."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.envs.gpu_scheduling.episode import build_episode
from loadmaster.platform.bench import simulators
from tests.traces import needs_traces


def test_generated_jobs_have_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulators, "RUNS", 2)
    monkeypatch.setattr(simulators, "RECORDED", 60)
    monkeypatch.setattr(simulators, "MANY", 300)
    figures = [*simulators.three_nodes(False, print), *simulators.many_jobs(False, print)]
    policies = ("fifo-first-fit", "sjf-first-fit", "fifo-load-balance", "sjf-load-balance")
    assert [figure.name for figure in figures] == [
        "gpu_scheduling/pai-like-3x8/cpu_s",
        *(f"gpu_scheduling/pai-like-3x8/{policy}/cpu_s" for policy in policies),
        *(f"gpu_scheduling/pai-like-300-jobs/{rule}/cpu_s" for rule in ("fifo", "sjf")),
    ]
    assert all(figure.value > 0 and figure.peer is None for figure in figures)
    assert figures[0].value == max(figure.value for figure in figures[1:5])


@needs_traces
def test_recorded_jobs_have_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulators, "RUNS", 9)
    measured = (*simulators.three_nodes(True, print), *simulators.many_jobs(True, print))
    figures = {figure.name: figure for figure in measured}
    small = figures["gpu_scheduling/pai-3x8/cpu_s"]
    assert small.peer == 9.0
    assert (small.ratio or 0) > 2000
    for ordering in ("fifo", "sjf"):
        assert figures[f"gpu_scheduling/20000-jobs/{ordering}/cpu_s"].value < 0.5


def test_vector_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulators, "MEASURED_S", 0.1)
    figure = simulators.vector_speed(2)
    assert figure.name == "gpu_scheduling/vector-2/steps_per_s"
    assert figure.value > 1000


def test_repeated_jobs() -> None:
    settings = simulators.same_rules(simulators.ONE_NODE, jobs=50)
    own = build_episode(settings, 0).jobs
    many = simulators.repeated(own, 2500, 1000)
    assert many.job_id.tolist() == list(range(2500))
    assert [many.arrival_s[place] for place in (0, 999, 1000, 2499)] == [0, 0, 60, 120]
    assert set(many.duration_s) <= set(own.duration_s)
    pairs = set(zip(own.duration_s, own.gpu, strict=True))
    assert set(zip(many.duration_s, many.gpu, strict=True)) <= pairs
    assert len(np.unique(many.duration_s)) > 10
