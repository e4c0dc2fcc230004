"""Example states: one by hand, and those of the simulator."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

from loadmaster.envs.pod_scaling import state as cols
from loadmaster.envs.pod_scaling.episode import build_setup
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.pod_scaling.settings import INTERVAL_S, PodScalingSettings
from loadmaster.envs.pod_scaling.snapshot import REPORTS_MAX, STEPS_MAX, PodSnapshot, snapshot_of
from loadmaster.serving.systems.aware.records import Bounds, Plan, Reports, Steps
from loadmaster.serving.systems.aware.schema import EXAMPLE, AwareState
from loadmaster.serving.systems.aware.snapshot import CORE_M, COUNTS, METRICS

SEED = 3
# An action: 512m, 887 MiB and 5 replicas, as places between the default bounds.
_ACTION = np.array([0.0, 0.0, 0.1], np.float32)


@cache
def examples() -> Mapping[str, AwareState]:
    """tiny: 5 reports; small: 20 minutes of them; large: an hour, which is the most."""
    return MappingProxyType(
        {
            "tiny": AwareState.model_validate(EXAMPLE),
            "small": _example(PodScalingSettings(application="webServe"), 15),
            "large": _example(
                PodScalingSettings(application="imageResize+S3Write", workload="bursty-like"), 70
            ),
        }
    )


def _example(settings: PodScalingSettings, decisions: int) -> AwareState:
    """The state after so many control steps with one plan."""
    runner = EpisodeRunner(settings, build_setup(settings), SEED)
    for _ in range(decisions):
        runner.decide(_ACTION)
    return state_of(runner)


def state_of(
    runner: EpisodeRunner, intervals: int = REPORTS_MAX, steps: int = STEPS_MAX
) -> AwareState:
    """The state that the operator of a simulated application would send, before a decision."""
    name, state = runner.episode.application.name, runner.episode.state
    return to_state(name, snapshot_of(runner.setup.constants, state, intervals, steps))


def to_state(application: str, snapshot: PodSnapshot) -> AwareState:
    """A snapshot as a state of the service."""
    low, high, plan = snapshot.low, snapshot.high, snapshot.plan

    def pair(column: int, factor: float = 1.0) -> Any:
        return _short(low[column] * factor), _short(high[column] * factor)

    return AwareState(
        application=application,
        slo_s=_short(snapshot.slo_s),
        bounds=Bounds(
            replicas=(int(low[cols.REPLICAS]), int(high[cols.REPLICAS])),
            cpu_m=pair(cols.CPU, CORE_M),
            memory_mib=pair(cols.MEMORY),
        ),
        plan=Plan(
            replicas=int(plan[cols.REPLICAS]),
            cpu_m=_short(plan[cols.CPU] * CORE_M),
            memory_mib=_short(plan[cols.MEMORY]),
        ),
        reports=_reports(snapshot),
        steps=Steps(
            requests=tuple(map(_short, snapshot.requests)),
            p99_s=tuple(
                None if requests == 0 and p99_s == 0 else _short(p99_s)
                for requests, p99_s in zip(snapshot.requests, snapshot.p99_s, strict=True)
            ),
            restarts=tuple(map(_short, snapshot.restarts)),
            ooms=tuple(map(_short, snapshot.ooms)),
        ),
    )


def _reports(snapshot: PodSnapshot) -> Reports:
    table = snapshot.reports
    seen = table[:, cols.R_SEEN]
    columns: dict[str, Any] = {
        column.name: tuple(map(_short, table[:, column.metric])) for column in COUNTS
    }
    for column in METRICS:
        values = table[:, column.metric] / column.factor
        columns[column.name] = tuple(
            _short(value) if share > 0 else None for value, share in zip(values, seen, strict=True)
        )
    ages = INTERVAL_S * np.arange(len(table) - 1, -1, -1)
    if ((seen > 0) & (seen < 1)).any():
        columns["seen"] = tuple(map(_short, seen))
    return Reports(age_s=tuple(map(float, ages)), **columns)


def _short(value: float) -> float:
    return float(f"{value:.12g}")
