"""Example states: one by hand, and those of the simulator."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.stream_scaling import state as cols
from loadmaster.envs.stream_scaling.actions import HOLD
from loadmaster.envs.stream_scaling.episode import Setup, build_setup
from loadmaster.envs.stream_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.stream_scaling.settings import WEEK_MIN, StreamScalingSettings
from loadmaster.envs.stream_scaling.state import JobTables, SimState
from loadmaster.serving.systems.sure.records import Snapshots, Task
from loadmaster.serving.systems.sure.schema import EXAMPLE, SureState
from loadmaster.serving.systems.sure.snapshot import COLUMNS, MINUTE_S, OUT

HELD = 36  # decisions before the examples
SEED = 3


@cache
def examples() -> Mapping[str, SureState]:
    """tiny: 3 tasks and snapshots; small: 10 tasks, large: 57, both with 61 snapshots."""
    return MappingProxyType(
        {
            "tiny": SureState.model_validate(EXAMPLE),
            "small": _example(StreamScalingSettings(job="small-1", initial=6)),
            "large": _example(StreamScalingSettings(job="large-2", initial=3)),
        }
    )


def _example(settings: StreamScalingSettings) -> SureState:
    """The state after some hours without a change."""
    runner = EpisodeRunner(settings, build_setup(settings), SEED)
    hold = np.full(1 + len(runner.parallelism), HOLD, np.float32)
    for _ in range(HELD):
        runner.decide(hold)
    return state_of(runner)


def state_of(runner: EpisodeRunner, snapshots: int | None = None) -> SureState:
    """The state that the operator of a simulated job would send, before a decision.

    By default with one snapshot more than is observed: the first pending records are compared with
    those before.
    """
    setup, (_, state, week_minute) = runner.setup, runner.episode
    now = int(state.clock[cols.MINUTE])
    count = min(snapshots or runner.settings.history + 1, now, len(state.metrics))
    restarted = int(state.clock[cols.RESTARTED_AT])
    names = setup.job.names
    return SureState(
        job=setup.job.name,
        tasks=_tasks(setup),
        edges=tuple((names[parent], names[child]) for parent, child in setup.job.edges),
        snapshots=_snapshots(setup.tables, state, now, count),
        time_of_week_min=(week_minute + now - 1) % WEEK_MIN,
        minutes_since_restart=now - restarted if restarted >= 0 else None,
        restart_minutes=float(state.times[cols.DOWN_FOR]) if restarted >= 0 else None,
        max_instances=runner.settings.max_instances,
    )


def _tasks(setup: Setup) -> tuple[Task, ...]:
    tables = setup.tables
    return tuple(
        Task(
            name=name,
            max_parallelism=int(tables.cap[task]),
            source=bool(tables.source[task] >= 0),
            sink=bool(tables.weight[task] > 0),
            key_groups=int(tables.key_groups[task]),
            chained=bool(tables.chain[task] != task),
        )
        for task, name in enumerate(setup.job.names)
    )


def _snapshots(job: JobTables, state: SimState, now: int, count: int) -> Snapshots:
    minutes = np.arange(now - count, now)
    reports = state.metrics[minutes % len(state.metrics)].astype(np.float64)

    def table(values: NDArray[np.float64]) -> Any:
        # Nine digits distinguish all numbers of four bytes.
        return [[None if v != v else float(f"{v:.9g}") for v in row] for row in values.tolist()]

    tables = {
        column.name: table(reports[:, :, column.metric] / column.factor) for column in COLUMNS
    }
    emitted = np.bincount(job.parent, job.ratio, len(job.cap))
    tables[OUT] = table(
        reports[:, :, cols.OUT_RATE] * np.where(job.source < 0, emitted, 1) / MINUTE_S
    )
    return Snapshots(minutes_ago=tuple((now - 1 - minutes).tolist()), **tables)
