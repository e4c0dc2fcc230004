"""Spark's own way of giving out slots, event by event, under its orders or under plans.

A slot that comes free takes the next task in the order at once; no executor is committed ahead, and
none waits in a job for a parent of its stage to end. In this it differs from the simulator of
`dag_scheduling`, whose rules are those of Decima's. Times that a real driver needs are those of the
jobs (`SparkStage.pause_ms`) and of the plans (`Steering.times`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain, count
from typing import Any

from loadmaster.platform.bench.engines.spark_cluster import SparkJob
from loadmaster.platform.steering.spark.durations import Key, TaskDurations
from loadmaster.platform.steering.spark.plans import Plan, plan_of, state_of
from loadmaster.platform.steering.spark.reports import Report

Decide = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(eq=False)
class _Stage:
    durations_ms: Sequence[int]
    parents: Sequence[int]
    pause_ms: int
    name: str
    number: int  # in order of submission
    started: int = 0
    finished: int = 0
    finished_ms: int = 0  # spent by finished tasks
    is_submitted: bool = False

    @property
    def is_done(self) -> bool:
        return self.finished == len(self.durations_ms)


@dataclass(eq=False)
class _Job:
    number: int
    job: SparkJob
    stages: list[_Stage]
    end_ms: int = -1
    running: int = field(default=0)

    @property
    def id(self) -> str:
        return f"job-{self.number}"


@dataclass
class Steering:
    """Decisions on the simulated state, and when they are made and take effect.

    `times` are those of a run in ms, of the state and of the effect; after them, and without any, a
    decision is made every `period_ms` and takes effect at once. Where no task has ended and no job
    has come there is none, as in a run.
    """

    decide: Decide
    profile: Mapping[Key, float]
    limit_factor: float | None = 3.0
    times: Sequence[tuple[int, int]] = ()
    period_ms: int = 50

    def all_times(self) -> Iterator[tuple[int, int]]:
        last = self.times[-1][0] if self.times else -self.period_ms
        later = ((ms, ms) for ms in count(last + self.period_ms, self.period_ms))
        return chain(self.times, later)


class _Event(IntEnum):
    """Kinds of events; of those at one time the lower come first."""

    TASK_ENDED = 0
    STAGE_SUBMITTED = 1
    JOB_ARRIVED = 2
    DECIDED = 3
    PLAN_IN_FORCE = 4


def _stages_of(job: SparkJob, numbers: Iterator[int]) -> list[_Stage]:
    return [
        _Stage(
            one.durations_ms,
            one.parents,
            one.pause_ms,
            one.name or f"{job.name} {place}",
            next(numbers),
        )
        for place, one in enumerate(job.stages)
    ]


class _Simulation:
    def __init__(
        self, jobs: Sequence[SparkJob], slots: int, order: str, steering: Steering | None
    ) -> None:
        numbers = count()
        self.jobs = [_Job(number, job, _stages_of(job, numbers)) for number, job in enumerate(jobs)]
        self._slots, self._order, self._steering = slots, order, steering
        self._free, self._present = slots, list[_Job]()
        self._left = len(jobs)
        self._plan: Plan | None = None
        self._is_changed = False  # since the last decision
        self._events: list[tuple[int, int, int, Any]] = []  # time, kind, tie-breaker, subject
        self._pushed = count()
        for one in self.jobs:
            self._push(one.job.arrival_ms, _Event.JOB_ARRIVED, one)
        if steering is not None:
            self._times = steering.all_times()
            self._durations = TaskDurations(1000.0, dict(steering.profile))
            self._push_decision()

    def _push(self, at_ms: int, kind: _Event, subject: Any) -> None:
        heapq.heappush(self._events, (at_ms, kind, next(self._pushed), subject))

    def _push_decision(self) -> None:
        times = next(self._times)
        self._push(times[0], _Event.DECIDED, times)

    def run(self) -> None:
        while self._left:
            now_ms, kind, _, subject = heapq.heappop(self._events)
            self._handle(now_ms, _Event(kind), subject)
            if not self._events or self._events[0][0] > now_ms:
                self._start_tasks(now_ms)

    def _handle(self, now_ms: int, kind: _Event, subject: Any) -> None:
        self._is_changed |= kind in (_Event.TASK_ENDED, _Event.JOB_ARRIVED)
        if kind is _Event.TASK_ENDED:
            self._end_task(now_ms, *subject)
        elif kind is _Event.STAGE_SUBMITTED:
            subject.is_submitted = True
        elif kind is _Event.JOB_ARRIVED:
            self._present.append(subject)
            self._submit(now_ms, [one for one in subject.stages if not one.parents])
        elif kind is _Event.DECIDED:
            if self._is_changed:
                self._decide(now_ms, subject[1])
            self._push_decision()
        else:
            self._plan = subject

    def _submit(self, now_ms: int, stages: Sequence[_Stage]) -> None:
        for one in stages:
            self._push(now_ms + one.pause_ms, _Event.STAGE_SUBMITTED, one)

    def _end_task(self, now_ms: int, job: _Job, stage: _Stage, length_ms: int) -> None:
        stage.finished += 1
        stage.finished_ms += length_ms
        job.running -= 1
        self._free += 1
        if not stage.is_done:
            return
        place = job.stages.index(stage)
        children = [one for one in job.stages if place in one.parents]
        ready = [one for one in children if all(job.stages[up].is_done for up in one.parents)]
        self._submit(now_ms, ready)
        if all(one.is_done for one in job.stages):
            job.end_ms = now_ms
            self._present.remove(job)
            self._left -= 1

    def _decide(self, now_ms: int, effect_ms: int) -> None:
        assert self._steering is not None
        self._is_changed = False
        report = _report(self._present, now_ms, self._slots)
        self._durations.note(report)
        state, _ = state_of(report, 0.0, self._durations)
        if state is not None:
            plan = plan_of(self._steering.decide(state), self._steering.limit_factor)
            self._push(max(effect_ms, now_ms), _Event.PLAN_IN_FORCE, plan)

    def _start_tasks(self, now_ms: int) -> None:
        while self._free and (chosen := self._next()) is not None:
            job, stage = chosen
            length_ms = stage.durations_ms[stage.started]
            stage.started += 1
            job.running += 1
            self._free -= 1
            self._push(now_ms + length_ms, _Event.TASK_ENDED, (job, stage, length_ms))

    def _next(self) -> tuple[_Job, _Stage] | None:
        waiting = [
            (job, stage)
            for job in self._present
            for stage in job.stages
            if stage.is_submitted and stage.started < len(stage.durations_ms)
        ]
        if not waiting:
            return None
        if self._order == "fair":
            return min(waiting, key=lambda each: (each[0].running, each[0].number, each[1].number))
        if self._plan is None:
            return waiting[0]
        return _first_of(waiting, self._plan, self._slots)


def _first_of(waiting: list[tuple[_Job, _Stage]], plan: Plan, slots: int) -> tuple[_Job, _Stage]:
    """The first within the limits; beyond them if there is none, as slots are not left idle."""
    ranks = {stage: rank for rank, stage in enumerate(plan.stages)}
    last = len(ranks)
    ordered = sorted(
        waiting, key=lambda each: ranks.get(each[1].number, plan.first.get(each[0].id, last))
    )
    for job, stage in ordered:
        if job.running < plan.limits.get(job.id, slots):
            return job, stage
    return ordered[0]


def simulate(
    jobs: Sequence[SparkJob], slots: int, order: str, steering: Steering | None = None
) -> list[float]:
    """Completion times in seconds under `fifo`, `fair`, or the plans of `steering`."""
    simulation = _Simulation(jobs, slots, order, steering)
    simulation.run()
    return [(one.end_ms - one.job.arrival_ms) / 1000 for one in simulation.jobs]


def _report(present: Sequence[_Job], now_ms: int, slots: int) -> Report:
    return Report.model_validate(
        {
            "version": 1, "application": "simulated", "slots": slots, "acts": True,
            "jobs": [
                {
                    "id": one.id,
                    "name": one.job.name,
                    "age_ms": float(now_ms - one.job.arrival_ms),
                    "stages": [
                        {
                            "id": stage.number,
                            "name": stage.name,
                            "tasks": len(stage.durations_ms),
                            "started": stage.started,
                            "finished": stage.finished,
                            "mean_ms": _mean_ms(stage),
                            "parents": [one.stages[parent].number for parent in stage.parents],
                        }
                        for stage in one.stages
                    ],
                }
                for one in present
            ],
        }
    )  # fmt: skip


def _mean_ms(stage: _Stage) -> float | None:
    return stage.finished_ms / stage.finished if stage.finished else None
