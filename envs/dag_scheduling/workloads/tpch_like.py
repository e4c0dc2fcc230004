"""Generates jobs like TPC-H on Spark: 22 query plans x 7 database sizes, no data needed.

Every job is "measured" as the published ones were: it runs alone on 5 to 100 executors, and each
task's duration goes to a list by what its executor had done before. docs/workloads.md compares the
outcome with the published statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling.jobs import Job, Stage, Workload, build_workload
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads.sources import stage_memory
from loadmaster.envs.dag_scheduling.workloads.tpch_costs import (
    LEVELS,
    Counts,
    Floats,
    draw_costs,
    mean_durations,
    variation,
)
from loadmaster.envs.dag_scheduling.workloads.tpch_plans import TABLES, PlanStage, query_plans

SIZES_GB = (2, 5, 10, 20, 50, 80, 100)
_SEED = 2019  # fixes the bank: the same jobs for everybody
# The published profiles list a fresh executor's task under the first wave as well, so it counts
# twice in their means. Two samples for each here give the same weights.
_FRESH_SAMPLES = 2

Lists = list[list[NDArray[np.int32]]]  # by stage, then by level


def load(settings: DagSchedulingSettings) -> Workload:
    return _generate()


@lru_cache(maxsize=1)
def _generate() -> Workload:
    random = np.random.default_rng(_SEED)
    plans = query_plans()
    stages = [stage for plan in plans for stage in plan]
    costs = draw_costs(stages, random)
    jobs = []
    for gb in SIZES_GB:
        tasks = _tasks(stages, gb)
        mean = mean_durations(costs, tasks, gb)
        waves = _draw(mean, variation(costs, mean[2]), _counts(plans, tasks), random)
        end = 0
        for query, plan in enumerate(plans, start=1):
            start, end = end, end + len(plan)
            lists = tuple(wave[start:end] for wave in waves)
            jobs.append(_job(f"tpch-like-{gb}g-q{query}", plan, tasks[start:end, 0], *lists))
    return build_workload("tpch-like", jobs)


def _job(
    name: str, plan: Sequence[PlanStage], tasks: Counts, fresh: Lists, first: Lists, rest: Lists
) -> Job:
    levels = LEVELS.tolist()
    stages = []
    for number, planned in enumerate(plan):
        known: list[NDArray[np.int32]] = []
        for durations in first[number]:
            # Where all executors were fresh, those that are not resemble a smaller level's.
            known.append(durations if len(durations) or not known else known[-1])
        stage = Stage(
            int(tasks[number]),
            planned.parents,
            first=dict(zip(levels, known, strict=True)),
            rest=dict(zip(levels, rest[number], strict=True)),
            fresh=dict(zip(levels, fresh[number], strict=True)),
            memory=stage_memory(name, number),
        )
        stages.append(stage)
    return Job(name, tuple(stages))


def _tasks(stages: Sequence[PlanStage], gb: int) -> Counts:
    """(stages, 1) One task a block of a scanned table, two at least; shuffles have their own."""
    tasks = [
        max(2, round(TABLES[stage.table].blocks_per_gb * gb)) if stage.table else stage.tasks
        for stage in stages
    ]
    return np.array(tasks, np.int64)[:, None]


def _counts(plans: Sequence[Sequence[PlanStage]], tasks: Counts) -> Counts:
    """(3, stages, levels) How many tasks are fresh, first and rest when the job runs alone."""
    ends = np.cumsum([len(plan) for plan in plans])[:-1]
    earlier = [np.cumsum(each, axis=0) - each for each in np.split(tasks, ends)]
    # Stages start in order; each fresh executor is taken by the first stage with a task to spare.
    fresh = np.clip(LEVELS - np.concatenate(earlier), 0, tasks)
    started = np.minimum(LEVELS, tasks)
    return np.stack([_FRESH_SAMPLES * fresh, started - fresh, tasks - started])


def _draw(
    mean: Floats, cv: Floats, count: Counts, random: np.random.Generator
) -> tuple[Lists, Lists, Lists]:
    """All lists at once, log-normal around their means. Arguments are (3, stages, levels)."""
    sigma = np.sqrt(np.log1p(cv**2)).ravel()
    centre = np.log(mean).ravel() - sigma**2 / 2
    each = count.ravel()
    noise = random.standard_normal(each.sum())
    drawn = np.exp(np.repeat(centre, each) + np.repeat(sigma, each) * noise)
    durations = np.maximum(np.rint(drawn), 1).astype(np.int32)
    ends = np.cumsum(each).tolist()
    lists = [durations[end - n : end] for end, n in zip(ends, each.tolist(), strict=True)]
    _, stages, levels = count.shape
    rows = [lists[row * levels : (row + 1) * levels] for row in range(3 * stages)]
    return rows[:stages], rows[stages : 2 * stages], rows[2 * stages :]
