"""An episode through Kubernetes and Prometheus over HTTP equals the one in process."""

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from loadmaster.envs.pod_scaling.episode import EpisodeResult
from loadmaster.platform.steering.core import Steerer, StepResult
from loadmaster.platform.steering.kubernetes.access import Access
from loadmaster.platform.steering.kubernetes.client import KubernetesClient
from loadmaster.platform.steering.kubernetes.engine import ENDPOINT, MpaEngine
from loadmaster.platform.steering.kubernetes.queries import MetricReader
from loadmaster.platform.steering.prometheus import Prometheus
from loadmaster.platform.steering.recommenders import find_recommender
from loadmaster.serving.systems.aware.examples import state_of
from loadmaster.serving.systems.aware.rules import AwareRule
from tests.platform.steering.kubernetes.api_server import DEADLINE_S, MPA, WINDOW_S, serving
from tests.platform.steering.kubernetes.simulation import (
    SimulatedCluster,
    SimulatedPrometheus,
    change_plan,
    new_runner,
    result_of,
    step,
)

SEED = 1
SETTINGS = {
    "application": "imageResize+S3Write", "workload": "bursty-like", "load_scale": 4.0, "steps": 30,
}  # fmt: skip


class Steered:
    """A simulated cluster and the engine that steers it."""

    def __init__(self, stack: ExitStack, rule: str, apply: bool = True) -> None:
        self.cluster = SimulatedCluster(new_runner(SEED, **SETTINGS))
        self.prometheus = SimulatedPrometheus(self.cluster)
        api_url = stack.enter_context(serving(self.cluster.handle))
        prometheus_url = stack.enter_context(serving(self.prometheus.handle))
        client = KubernetesClient(Access(api_url, "secret"), deadline_s=DEADLINE_S)
        reader = MetricReader(Prometheus(prometheus_url, deadline_s=DEADLINE_S), WINDOW_S)
        self.engine = MpaEngine(client, reader, "shop/cart", apply, lambda: self.cluster.now_s)
        self.steerer = Steerer(find_recommender([rule], ENDPOINT), "act" if apply else "watch")

    def step(self) -> StepResult:
        result = self.steerer.step(self.engine, self.cluster.now_s)
        self.cluster.advance()
        return result


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def in_process(rule: str) -> EpisodeResult:
    runner, policy = new_runner(SEED, **SETTINGS), AwareRule(rule)
    while not runner.over:
        decided = policy.decide(state_of(runner)).decision
        change_plan(runner, decided.replicas, decided.cpu_m, decided.memory_mib)
        step(runner)
    return result_of(runner)


def assert_equal(one: EpisodeResult, other: EpisodeResult) -> None:
    for field in dataclasses.fields(EpisodeResult):
        assert np.array_equal(getattr(one, field.name), getattr(other, field.name)), field.name


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["hpa", "mpa", "window-peak"])
def test_episode_over_http_equals_the_one_in_process(rule: str, stack: ExitStack) -> None:
    steered = Steered(stack, rule)
    results = []
    while not steered.cluster.runner.over:
        results.append(steered.step())
    assert not any(one.degraded for one in results)
    assert sum(one.result == "acted" for one in results) >= 3
    assert_equal(result_of(steered.cluster.runner), in_process(rule))
    status = steered.cluster.objects[MPA]["status"]
    assert status["mode"] == "Apply"
    assert status["lastSafe"]["replicas"] >= 1
    assert {one["type"]: one["status"] for one in status["conditions"]}["Degraded"] == "False"


def test_dry_run_changes_nothing_but_the_status(stack: ExitStack) -> None:
    steered = Steered(stack, "hpa", apply=False)
    plan = steered.cluster.runner.episode.state.plan.copy()
    results = [steered.step() for _ in range(5)]
    assert {one.result for one in results} == {"dry-run"}
    assert any(one.wanted["replicas"] != one.plan["replicas"] for one in results)
    assert steered.cluster.changes() == []
    assert (steered.cluster.runner.episode.state.plan == plan).all()
    status = steered.cluster.objects[MPA]["status"]
    assert status["mode"] == "DryRun"
    assert status["recommendation"]["replicas"] == int(results[-1].wanted["replicas"])
    assert "by hpa" in status["reason"]


def test_silent_prometheus_holds_then_returns_to_the_last_safe_plan(stack: ExitStack) -> None:
    steered = Steered(stack, "hpa")
    while "lastSafe" not in (steered.cluster.objects[MPA].get("status") or {}):
        steered.step()
    safe = steered.cluster.objects[MPA]["status"]["memory"]["safePlan"]
    runner = steered.cluster.runner
    change_plan(runner, 1, safe["cpu_m"] / 2, safe["memory_mib"])  # by another, since then
    steered.cluster.sync()
    steered.prometheus.silent = True
    results = [steered.step() for _ in range(4)]
    assert {one.silent for one in results} == {"metrics"}
    assert [one.wanted["replicas"] for one in results[:2]] == [1, 1]
    assert results[2].wanted == {**safe, "replicas": max(safe["replicas"], 1)}
    assert runner.episode.state.plan[2] == safe["replicas"]
    status = steered.cluster.objects[MPA]["status"]
    conditions = {one["type"]: one for one in status["conditions"]}
    assert conditions["Degraded"]["reason"] == "MetricsSilent"
    assert "source" not in status
    events = [one.body for one in steered.cluster.received if one.path.endswith("/events")]
    assert [one["reason"] for one in events if one["type"] == "Warning"] == ["MetricsSilent"]
