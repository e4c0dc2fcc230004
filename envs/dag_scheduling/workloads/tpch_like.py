"""Generates jobs like TPC-H on Spark: 22 query plans x 7 database sizes, no data needed.

A cost model stands behind the durations. A scan parses one block a task; a shuffle task pays for
opening its files and for its share of the data. Everything slows down as the job holds more
executors, short shuffle tasks most. An executor's first task in a stage also pays for setting the
stage up, and its first in the job for warming up. docs/workloads.md compares the outcome with the
published statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling.jobs import Job, Stage, Workload, build_workload
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads.sources import stage_memory
from loadmaster.envs.dag_scheduling.workloads.tpch_plans import TABLES, PlanStage, query_plans

SIZES_GB = (2, 5, 10, 20, 50, 80, 100)
LEVELS = np.array([5, 10, 20, 40, 50, 60, 80, 100])
_SEED = 2019  # fixes the bank: the same jobs for everybody
# The published profiles list a fresh executor's task under the first wave as well, so it counts
# twice in their means. Two samples for each here give the same weights.
_FRESH_SAMPLES = 2

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Lists = list[list[NDArray[np.int32]]]  # by stage, then by level


def load(settings: DagSchedulingSettings) -> Workload:
    return _generate()


@lru_cache(maxsize=1)
def _generate() -> Workload:
    random = np.random.default_rng(_SEED)
    plans = query_plans()
    stages = [stage for plan in plans for stage in plan]
    costs = _stage_costs(stages, random)
    jobs = []
    for gb in SIZES_GB:
        tasks = _tasks(stages, gb)
        waves = _draw(_mean_durations(costs, tasks, gb), _counts(plans, tasks), costs, random)
        end = 0
        for query, plan in enumerate(plans, start=1):
            start, end = end, end + len(plan)
            jobs.append(_job(f"tpch-like-{gb}g-q{query}", plan, tasks[start:end], start, waves))
    return build_workload("tpch-like", jobs)


def _job(
    name: str,
    plan: Sequence[PlanStage],
    tasks: Counts,
    start: int,
    waves: tuple[Lists, Lists, Lists],
) -> Job:
    stages = []
    for number, planned in enumerate(plan):
        fresh, first, rest = (
            dict(zip(LEVELS.tolist(), wave[start + number], strict=True)) for wave in waves
        )
        smaller: NDArray[np.int32] = np.zeros(0, np.int32)
        for level, durations in first.items():
            # All executors were fresh: those that are not resemble a smaller level's.
            smaller = first[level] = durations if len(durations) else smaller
        stages.append(
            Stage(
                int(tasks[number]),
                planned.parents,
                first,
                rest,
                fresh,
                memory=stage_memory(name, number),
            )
        )
    return Job(name, tuple(stages))


class _Costs(NamedTuple):
    """What sets the stages of the plans apart, the same at every size. All (stages,)."""

    is_scan: NDArray[np.bool_]
    blocks_per_gb: Floats
    block_ms: Floats  # to scan a block
    open_ms: Floats  # to open a shuffle's files
    data_ms_per_gb: Floats  # a shuffle task's share of the data
    setup_ms: Floats  # an executor's first task in the stage
    warmup_ms: Floats  # an executor's first task in the job
    contention: Floats  # how soon a shuffle task loses time to the job's other executors
    contention_ms: Floats  # and how much at most
    strain: Floats  # what many executors cost a scan of a large database
    spread: Floats  # how uneven the tasks are


def _stage_costs(stages: Sequence[PlanStage], random: np.random.Generator) -> _Costs:
    count = len(stages)
    tables = [TABLES.get(stage.table) for stage in stages]
    is_scan = np.array([bool(stage.table) for stage in stages])
    mb_in = np.array([stage.mb_in for stage in stages])
    lognormal, uniform = random.lognormal, random.uniform
    # New code for the executor: its first task compiles it. Large scans have less that is new.
    large = np.array([stage.table in ("lineitem", "orders") for stage in stages])
    compiles = random.random(count) < np.where(large, 0.3, 0.65)
    open_ms = uniform(6, 12, count) + np.where(mb_in > 2, uniform(5, 32, count), 0.0)
    scan_setup = np.where(compiles, uniform(700, 1600, count), uniform(100, 300, count))
    scan_warmup = uniform(900, 2400, count)
    shuffle_warmup = uniform(150, 1300, count)
    return _Costs(
        is_scan=is_scan,
        blocks_per_gb=np.array([table.blocks_per_gb if table else 0.0 for table in tables]),
        block_ms=np.array([table.block_ms if table else 0.0 for table in tables])
        * lognormal(0, 0.07, count),
        open_ms=open_ms,
        data_ms_per_gb=0.04 * mb_in * lognormal(0, 0.1, count),
        setup_ms=np.where(is_scan, scan_setup, 6.8 * open_ms * lognormal(0, 0.75, count)),
        warmup_ms=np.where(is_scan, scan_warmup, shuffle_warmup),
        contention=3.0 * lognormal(0, 0.6, count),
        contention_ms=200 * lognormal(0, 0.35, count),
        strain=uniform(0, 0.5, count),
        spread=lognormal(0, 0.45, count),
    )


def _tasks(stages: Sequence[PlanStage], gb: int) -> Counts:
    """(stages,) One task a block of a scanned table, two at least; shuffles have their own."""
    return np.array(
        [
            max(2, round(TABLES[stage.table].blocks_per_gb * gb)) if stage.table else stage.tasks
            for stage in stages
        ]
    )


def _counts(plans: Sequence[Sequence[PlanStage]], tasks: Counts) -> Counts:
    """(3, stages, levels) How many tasks are fresh, first and rest when the job runs alone."""
    before = []
    end = 0
    for plan in plans:
        start, end = end, end + len(plan)
        before.append(np.cumsum(tasks[start:end]) - tasks[start:end])
    taken = np.concatenate(before)[:, None]  # tasks that found a fresh executor in earlier stages
    fresh = np.clip(LEVELS - taken, 0, tasks[:, None])
    started = np.minimum(LEVELS, tasks[:, None])
    return np.stack([_FRESH_SAMPLES * fresh, started - fresh, tasks[:, None] - started])


def _mean_durations(costs: _Costs, tasks: Counts, gb: int) -> Floats:
    """(3, stages, levels) Mean ms of a fresh, a first and a rest task."""
    c = _Costs(*(field[:, None] for field in costs))
    busy = np.minimum(LEVELS, tasks[:, None]) / 100  # executors at work in the stage, hundreds
    fill = np.minimum(1.0, c.blocks_per_gb * gb / tasks[:, None])  # of a block
    strain = c.strain * np.maximum(busy - 0.6, 0) / 0.4 * (gb / 100) ** 2
    scan = (30 + c.block_ms * fill) * (1 + 0.35 * busy**1.2 + strain)
    alone = c.open_ms + c.data_ms_per_gb * gb * (1 + 0.45 * gb / 100)  # spills: more than linear
    lost = (busy - 0.05) * c.contention_ms * -np.expm1(-c.contention * alone / c.contention_ms)
    rest = np.where(c.is_scan, scan, alone * (1 + 0.35 * busy) + lost)
    first = 1.05 * rest + c.setup_ms * (0.75 + 1.25 * LEVELS / 100)
    fresh = 1.05 * rest + c.warmup_ms * (1 + 0.9 * busy**2)
    return np.stack([fresh, first, rest])


def _draw(
    mean: Floats, count: Counts, costs: _Costs, random: np.random.Generator
) -> tuple[Lists, Lists, Lists]:
    """Every list, drawn at once: log-normal around its mean."""
    rest = mean[2]
    uneven = np.where(costs.is_scan[:, None], 0.1, 0.12 + 0.5 * np.exp(-rest / 150))
    cv = np.stack([np.full_like(rest, 0.12), np.full_like(rest, 0.25), uneven])
    cv *= costs.spread[:, None]
    sigma = np.sqrt(np.log1p(cv**2))
    flat = count.ravel()
    noise = random.standard_normal(flat.sum())
    drawn = np.repeat(np.log(mean).ravel() - sigma.ravel() ** 2 / 2, flat)
    drawn += np.repeat(sigma.ravel(), flat) * noise
    durations = np.maximum(np.rint(np.exp(drawn)), 1).astype(np.int32)
    ends = np.cumsum(flat)
    lists = [durations[end - n : end] for end, n in zip(ends.tolist(), flat.tolist(), strict=True)]
    stages, levels = rest.shape
    rows = [lists[row * levels : (row + 1) * levels] for row in range(3 * stages)]
    return rows[:stages], rows[stages : 2 * stages], rows[2 * stages :]
