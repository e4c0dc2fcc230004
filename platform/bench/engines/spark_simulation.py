"""Spark's own way of giving out slots, event by event, without overheads.

A slot that comes free takes the next task in the order at once; no executor is committed ahead, and
none waits in a job for a parent of its stage to end. In this it differs from the simulator of
`dag_scheduling`, whose rules are those of Decima's.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadmaster.platform.bench.engines.spark_cluster import SparkJob
from loadmaster.platform.steering.spark.durations import Key, TaskDurations
from loadmaster.platform.steering.spark.plans import Plan, plan_of, state_of
from loadmaster.platform.steering.spark.reports import Report

Decide = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass
class _Stage:
    durations_ms: Sequence[int]
    parents: Sequence[int]
    number: int  # in order of submission
    started: int = 0
    finished: int = 0
    spent_ms: int = 0

    @property
    def is_done(self) -> bool:
        return self.finished == len(self.durations_ms)


@dataclass
class _Job:
    number: int
    job: SparkJob
    stages: list[_Stage]
    end_ms: int = -1
    running: int = field(default=0)

    def ready(self) -> list[_Stage]:
        """Stages with tasks to start."""
        return [
            one
            for one in self.stages
            if one.started < len(one.durations_ms)
            and all(self.stages[parent].is_done for parent in one.parents)
        ]


@dataclass
class Steering:
    """Decisions at most every `pause_ms`, which take effect after `delay_ms`."""

    decide: Decide
    profile: dict[Key, float]
    limit_factor: float | None = 3.0
    pause_ms: int = 200
    delay_ms: int = 150


def simulate(
    jobs: Sequence[SparkJob], slots: int, order: str, steering: Steering | None = None
) -> list[float]:
    """Completion times in seconds under `fifo`, `fair`, or the plans of `steering`."""
    all_jobs, count = [], 0
    for number, job in enumerate(jobs):
        stages = []
        for given in job.stages:
            stages.append(_Stage(given.durations_ms, given.parents, count))
            count += 1
        all_jobs.append(_Job(number, job, stages))
    events: list[tuple[int, int, int, int]] = []  # time, kind, job, stage; kinds: 0 to 3
    for one in all_jobs:
        heapq.heappush(events, (one.job.arrival_ms, 1, one.number, 0))
    free, present = slots, list[_Job]()
    plan: Plan | None = None
    pending: Plan | None = None
    durations = TaskDurations(1000.0, None if steering is None else steering.profile)
    is_due = False
    while events:
        now, kind, number, place = heapq.heappop(events)
        if kind == 0:  # a task has ended
            one = all_jobs[number]
            stage = one.stages[place]
            stage.finished += 1
            one.running -= 1
            free += 1
            if all(each.is_done for each in one.stages):
                one.end_ms = now
                present.remove(one)
        elif kind == 1:
            present.append(all_jobs[number])
        elif kind == 2 and steering is not None:
            is_due = False
            report = _report(present, now, slots)
            durations.note(report)
            state, _ = state_of(report, 0.0, durations)
            if state is not None:
                pending = plan_of(steering.decide(state), steering.limit_factor)
                heapq.heappush(events, (now + steering.delay_ms, 3, 0, 0))
        elif kind == 3:
            plan = pending
        if steering is not None and not is_due and kind < 2 and present:
            is_due = True
            heapq.heappush(events, (now + steering.pause_ms, 2, 0, 0))
        if events and events[0][0] == now and events[0][1] <= kind:
            continue
        while free:
            chosen = _next(present, slots, order, plan)
            if chosen is None:
                break
            one, stage = chosen
            length = stage.durations_ms[stage.started]
            stage.started += 1
            stage.spent_ms += length
            one.running += 1
            free -= 1
            heapq.heappush(events, (now + length, 0, one.number, one.stages.index(stage)))
    return [(one.end_ms - one.job.arrival_ms) / 1000 for one in all_jobs]


def _next(
    present: Sequence[_Job], slots: int, order: str, plan: Plan | None
) -> tuple[_Job, _Stage] | None:
    ready = [(one, stage) for one in present for stage in one.ready()]
    if not ready:
        return None
    if order == "fair":
        return min(ready, key=lambda each: (each[0].running, each[0].number, each[1].number))
    if plan is None:
        return ready[0]
    ranks = {stage: rank for rank, stage in enumerate(plan.stages)}
    of_job: dict[int, int] = {}
    for one in present:
        known = [ranks[stage.number] for stage in one.stages if stage.number in ranks]
        of_job[one.number] = min(known, default=len(ranks))
    ready.sort(key=lambda each: ranks.get(each[1].number, of_job[each[0].number]))
    for one, stage in ready:
        if one.running < plan.limits.get(f"job-{one.number}", slots):
            return one, stage
    return ready[0]


def _report(present: Sequence[_Job], now: int, slots: int) -> Report:
    return Report.model_validate(
        {
            "version": 1, "application": "simulated", "slots": slots, "acts": True,
            "jobs": [
                {
                    "id": f"job-{one.number}",
                    "name": one.job.name,
                    "age_ms": float(now - one.job.arrival_ms),
                    "stages": [
                        {
                            "id": stage.number,
                            "name": f"{one.job.name} {place}",
                            "tasks": len(stage.durations_ms),
                            "started": stage.started,
                            "finished": stage.finished,
                            "mean_ms": stage.spent_ms / stage.started if stage.finished else None,
                            "parents": [one.stages[parent].number for parent in stage.parents],
                        }
                        for place, stage in enumerate(one.stages)
                    ],
                }
                for one in present
            ],
        }
    )  # fmt: skip
