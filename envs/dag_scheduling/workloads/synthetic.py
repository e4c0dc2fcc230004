"""Generated workloads, which need no data: `tpch-like` and `toy`.

`tpch-like` has the 22 TPC-H query plans at 7 database sizes. Each job is "measured" as the
published ones were: it runs alone on 5 to 100 executors, and each task's duration goes to a list
by what its executor ran before. A scan parses one block a task; a shuffle task opens its files and
reads its share of the data. Tasks slow down as the job holds more executors, short shuffle tasks
most. An executor's first task in a stage pays for set-up, its first in the job for warm-up. The
constants were fitted to the published statistics, with which docs/workloads.md compares.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling.jobs import Job, Stage, Workload, build_workload, equal_tasks
from loadmaster.envs.dag_scheduling.workloads.tpch_plans import (
    TABLES,
    PlanStage,
    query_plans,
    stage_memory,
)

SIZES_GB = (2, 5, 10, 20, 50, 80, 100)
_SEED = 2019  # fixes all jobs
# The published profiles list a fresh executor's task under the first wave as well, so it counts
# twice in their means. Two samples for each here give the same weights.
_FRESH_SAMPLES = 2
LEVELS = np.array([5, 10, 20, 40, 50, 60, 80, 100])  # executors of the job, with own durations

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Lists = list[list[NDArray[np.int32]]]  # by stage, then by level


class Costs(NamedTuple):
    """Cost parameters of each stage, the same at every size. All (stages, 1)."""

    is_scan: NDArray[np.bool_]
    blocks_per_gb: Floats
    block_ms: Floats  # to scan a block
    open_ms: Floats  # to open a shuffle's files
    data_ms_per_gb: Floats  # a shuffle task's share of the data
    setup_ms: Floats  # an executor's first task in the stage
    warmup_ms: Floats  # an executor's first task in the job
    contention: Floats  # rate at which a shuffle task loses time to the job's other executors
    contention_ms: Floats  # the most it loses
    strain: Floats  # slowdown of a scan of a large database by many executors
    spread: Floats  # factor of the tasks' variation


def draw_costs(stages: Sequence[PlanStage], random: np.random.Generator) -> Costs:
    """Draw the parameters of each stage."""
    each = (len(stages), 1)
    lognormal, uniform = random.lognormal, random.uniform
    tables = [TABLES.get(stage.table) for stage in stages]
    is_scan = np.array([stage.table != "" for stage in stages]).reshape(each)
    large = np.array([stage.table in ("lineitem", "orders") for stage in stages]).reshape(each)
    mb_in = np.array([stage.mb_in for stage in stages]).reshape(each)
    block_ms = np.array([table.block_ms if table else 0.0 for table in tables]).reshape(each)
    blocks = np.array([table.blocks_per_gb if table else 0.0 for table in tables]).reshape(each)
    # An executor's first task compiles new code; large scans have less of it.
    compiles = random.random(each) < np.where(large, 0.3, 0.65)
    open_ms = uniform(6, 12, each) + np.where(mb_in > 2, uniform(5, 32, each), 0.0)
    scan_setup = np.where(compiles, uniform(700, 1600, each), uniform(100, 300, each))
    scan_warmup, shuffle_warmup = uniform(900, 2400, each), uniform(150, 1300, each)
    return Costs(
        is_scan=is_scan,
        blocks_per_gb=blocks,
        block_ms=block_ms * lognormal(0, 0.07, each),
        open_ms=open_ms,
        data_ms_per_gb=0.04 * mb_in * lognormal(0, 0.1, each),
        setup_ms=np.where(is_scan, scan_setup, 6.8 * open_ms * lognormal(0, 0.75, each)),
        warmup_ms=np.where(is_scan, scan_warmup, shuffle_warmup),
        contention=3.0 * lognormal(0, 0.6, each),
        contention_ms=200 * lognormal(0, 0.35, each),
        strain=uniform(0, 0.5, each),
        spread=lognormal(0, 0.45, each),
    )


def mean_durations(c: Costs, tasks: Counts, gb: int) -> Floats:
    """(3, stages, levels) Mean ms of a fresh, a first and a rest task; `tasks` is (stages, 1)."""
    busy = np.minimum(LEVELS, tasks) / 100  # executors at work in the stage, hundreds
    fill = np.minimum(1.0, c.blocks_per_gb * gb / tasks)  # of a block
    strain = c.strain * np.maximum(busy - 0.6, 0) / 0.4 * (gb / 100) ** 2
    scan = (30 + c.block_ms * fill) * (1 + 0.35 * busy**1.2 + strain)
    alone = c.open_ms + c.data_ms_per_gb * gb * (1 + 0.45 * gb / 100)  # spills: more than linear
    lost = (busy - 0.05) * c.contention_ms * -np.expm1(-c.contention * alone / c.contention_ms)
    rest = np.where(c.is_scan, scan, alone * (1 + 0.35 * busy) + lost)
    first = 1.05 * rest + c.setup_ms * (0.75 + 1.25 * LEVELS / 100)
    fresh = 1.05 * rest + c.warmup_ms * (1 + 0.9 * busy**2)
    return np.stack([fresh, first, rest])


def variation(c: Costs, rest_ms: Floats) -> Floats:
    """(3, stages, levels) Coefficients of variation: short shuffle tasks are the most uneven."""
    rest = np.where(c.is_scan, 0.1, 0.12 + 0.5 * np.exp(-rest_ms / 150))
    fresh, first = np.full_like(rest, 0.12), np.full_like(rest, 0.25)
    return np.stack([fresh, first, rest]) * c.spread


@lru_cache(maxsize=1)
def toy() -> Workload:
    """Build three jobs with constant durations, to compute schedules by hand.

    | job     | stages                                               | work | critical path |
    |---------|------------------------------------------------------|------|---------------|
    | single  | 0: 4 tasks x 1 s                                     |  4 s |           1 s |
    | chain   | 0: 2 x 1 s -> 1: 1 x 2 s -> 2: 2 x 1 s               |  6 s |           4 s |
    | diamond | 0: 1 x 1 s -> (1: 2 x 2 s, 2: 4 x 1 s) -> 3: 1 x 1 s | 10 s |           4 s |
    """
    stage = equal_tasks
    diamond = stage(1, 1000), stage(2, 2000, 0), stage(4, 1000, 0), stage(1, 1000, 1, 2)
    jobs = (
        Job("single", (stage(4, 1000),)),
        Job("chain", (stage(2, 1000), stage(1, 2000, 0), stage(2, 1000, 1))),
        Job("diamond", diamond),
    )
    return build_workload("toy", jobs, "constant durations, no waves, no warm-up")


@lru_cache(maxsize=1)
def tpch_like() -> Workload:
    """Generate the 154 jobs."""
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
            lists = (wave[start:end] for wave in waves)
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
            # Where all executors were fresh, the next smaller level's list serves.
            known.append(durations if len(durations) or not known else known[-1])
        first_wave, rest_wave, fresh_wave = (
            dict(zip(levels, lists, strict=True)) for lists in (known, rest[number], fresh[number])
        )
        waves = first_wave, rest_wave, fresh_wave
        memory = stage_memory(name, number)
        stages.append(Stage(int(tasks[number]), planned.parents, *waves, memory=memory))
    return Job(name, tuple(stages))


def _tasks(stages: Sequence[PlanStage], gb: int) -> Counts:
    """(stages, 1) Tasks: one a block of a scanned table, at least two; a shuffle's own number."""
    tasks = [
        max(2, round(TABLES[stage.table].blocks_per_gb * gb)) if stage.table else stage.tasks
        for stage in stages
    ]
    return np.array(tasks, np.int64)[:, None]


def _counts(plans: Sequence[Sequence[PlanStage]], tasks: Counts) -> Counts:
    """(3, stages, levels) Numbers of fresh, first and rest tasks when the job runs alone."""
    ends = np.cumsum([len(plan) for plan in plans])[:-1]
    earlier = [np.cumsum(each, axis=0) - each for each in np.split(tasks, ends)]
    # Stages start in order; a fresh executor goes to the first stage with a task for it.
    fresh = np.clip(LEVELS - np.concatenate(earlier), 0, tasks)
    started = np.minimum(LEVELS, tasks)
    return np.stack([_FRESH_SAMPLES * fresh, started - fresh, tasks - started])


def _draw(
    mean: Floats, cv: Floats, count: Counts, random: np.random.Generator
) -> tuple[Lists, Lists, Lists]:
    """Draw all lists, log-normal around their means. Arguments are (3, stages, levels)."""
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
