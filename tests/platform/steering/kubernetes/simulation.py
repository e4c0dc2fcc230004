"""The simulator of pod scaling behind the HTTP of Kubernetes and Prometheus.

A resize of any pod is the plan's size, which the simulator brings to all pods, new ones included,
within its disruption budget. Prometheus answers the queries of the table, which it knows by their
text, with what the simulator has reported until now.
"""

import math
from typing import Any

import numpy as np

from loadmaster.envs.pod_scaling import state as cols
from loadmaster.envs.pod_scaling.episode import EpisodeResult, build_setup
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.pod_scaling.settings import INTERVAL_S, STEP_INTERVALS, PodScalingSettings
from loadmaster.envs.pod_scaling.simulator import advance
from loadmaster.envs.pod_scaling.snapshot import PodSnapshot, snapshot_of
from loadmaster.platform.steering.kubernetes.quantities import size_of
from loadmaster.platform.steering.kubernetes.resource import parse_spec
from loadmaster.serving.systems.aware.snapshot import COUNTS, METRICS
from tests.platform.steering.kubernetes import api_server
from tests.platform.steering.kubernetes.api_server import (
    Json,
    Received,
    parameters,
    query_label,
)

EPOCH_S = 1_800_000_000.0  # of interval 0


def new_runner(seed: int, **settings: Any) -> EpisodeRunner:
    """An episode whose first plan is in whole units, with all metrics."""
    chosen = PodScalingSettings(
        missing_metrics=0.0, initial_cpu_m=1000, initial_memory_mib=512, initial_replicas=3,
        **settings,
    )  # fmt: skip
    return EpisodeRunner(chosen, build_setup(chosen), seed)


def step(runner: EpisodeRunner) -> None:
    """Simulate a control step with the present plan."""
    advance(runner.setup.constants, runner.episode.state, STEP_INTERVALS)


def change_plan(runner: EpisodeRunner, replicas: float, cpu_m: float, memory_mib: float) -> None:
    state = runner.episode.state
    wanted = [cpu_m / 1000, memory_mib, replicas]
    if list(state.plan) != wanted:
        state.plan[:] = wanted
        state.clock[cols.SETTLED] = 0


class SimulatedCluster(api_server.ApiServer):
    """A Deployment whose pods the simulator runs."""

    def __init__(self, runner: EpisodeRunner, **spec: Any) -> None:
        super().__init__()
        self.runner = runner
        slo_s = float(runner.episode.state.apps[0, cols.SLO_S])
        data = api_server.mpa_object(
            sloSeconds=slo_s, stabilisationSeconds=0, flapsPerHour=1000, **spec
        )
        self.put(api_server.MPA, data)
        self.sync()

    @property
    def now_s(self) -> float:
        return EPOCH_S + float(self.runner.episode.state.clock[cols.NOW]) * INTERVAL_S

    def sync(self) -> None:
        """Write the simulator's pods into the objects."""
        state = self.runner.episode.state
        cpu, memory = _texts(state.plan)
        old = [path for path in self.objects if path.startswith(f"{api_server.PODS}/")]
        for path in old:
            del self.objects[path]
        replicas = int(state.plan[cols.REPLICAS])
        self.put(api_server.DEPLOYMENT, api_server.deployment(replicas, "1000m", "512Mi"))
        now = float(state.clock[cols.NOW] * INTERVAL_S)
        for number, row in enumerate(state.pods[: int(state.clock[cols.PODS])]):
            actual, placed = _texts(row), row[cols.NODE] >= 0
            waits = "Deferred" if placed and actual != (cpu, memory) else ""
            data = api_server.pod(
                api_server.pod_name(number), cpu, memory, bool(row[cols.READY_AT] <= now),
                waits, actual, node=bool(placed),
            )  # fmt: skip
            self.put(f"{api_server.PODS}/{api_server.pod_name(number)}", data)

    def changed(self, path: str, part: str, after: Json) -> None:
        plan = self.runner.episode.state.plan
        values = [plan[cols.REPLICAS], 1000 * plan[cols.CPU], plan[cols.MEMORY]]
        if part == "scale":
            values[0] = after["spec"]["replicas"]
        elif part == "resize":
            size = size_of(after["spec"]["containers"][0]["resources"], path)
            values[1:] = size.cpu_m, size.memory_mib
        change_plan(self.runner, *values)

    def advance(self) -> None:
        step(self.runner)
        self.sync()


def _texts(row: Any) -> tuple[str, str]:
    memory = float(row[cols.MEMORY])
    whole = memory == math.floor(memory)
    text = f"{int(memory)}Mi" if whole else str(int(memory * 2**20))
    return f"{round(1000 * float(row[cols.CPU]))}m", text


def result_of(runner: EpisodeRunner) -> EpisodeResult:
    return runner.result("test")


class SimulatedPrometheus:
    """Answers range queries of one application from a simulated episode."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self.silent = False
        self.missing: set[str] = set()  # queries without series

    def handle(self, one: Received, token: str) -> tuple[int, dict[str, str], Json]:
        assert token == ""
        if self.silent:
            return 503, {"Retry-After": "60"}, {"status": "error", "error": "shutting down"}
        given = parameters(one)
        spec = parse_spec(self._cluster.objects[api_server.MPA], "shop/cart")
        state = self._cluster.runner.episode.state
        snapshot = snapshot_of(self._cluster.runner.setup.constants, state)
        columns = {**_reports(snapshot), **_steps(snapshot)}
        label = query_label(given["query"], spec)
        step_s, end_s = float(given["step"]), float(given["end"])
        values = columns[label]
        samples = [
            [end_s - (len(values) - 1 - place) * step_s, f"{value:.12g}"]
            for place, value in enumerate(values)
            if not math.isnan(value) and label not in self.missing
        ]
        result = [{"metric": {}, "values": samples}] if samples else []
        return 200, {}, {"status": "success", "data": {"resultType": "matrix", "result": result}}


def _reports(snapshot: PodSnapshot) -> dict[str, Any]:
    table, found = snapshot.reports, {}
    for column in (*COUNTS, *METRICS):
        values = table[:, column.metric] / column.factor
        if column in METRICS:
            values = np.where(table[:, cols.R_SEEN] > 0, values, np.nan)
        found[f"reports.{column.name}"] = values
    return found


def _steps(snapshot: PodSnapshot) -> dict[str, Any]:
    return {
        "steps.requests": snapshot.requests,
        "steps.p99_s": np.where(snapshot.requests > 0, snapshot.p99_s, np.nan),
        "steps.restarts": snapshot.restarts,
    }
