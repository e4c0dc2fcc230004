"""Execution plans of the 22 TPC-H queries, as stages of a Spark-like engine.

They follow the queries' text: every table is scanned, every join and every grouping is a shuffle,
ORDER BY adds two (a sort by range, then the ordered output), LIMIT and totals end in a single
task. A plan is a list of stages, numbered from 0, each as

    KIND [parents] [> megabytes]

KIND is a table's name for a scan (with a parent where it waits for a subquery's total), else join,
group, sort, total, or out/N for an ordered output of N tasks. The megabytes are the stage's output
for each gigabyte of the database: estimates, set so that shuffles take about as long as in
published measurements.
"""

import hashlib
import re
from typing import NamedTuple


class Table(NamedTuple):
    blocks_per_gb: float  # blocks of 128 MB, for each gigabyte of the database
    block_ms: float  # to parse one


TABLES = {
    "lineitem": Table(5.93, 1900),
    "orders": Table(1.33, 1750),
    "partsupp": Table(0.91, 1550),
    "customer": Table(0.19, 1600),
    "part": Table(0.19, 1600),
    "supplier": Table(0.01, 1500),
    "nation": Table(0.0, 0),
    "region": Table(0.0, 0),
}
SHUFFLE_TASKS = 200  # Spark's default

_PLANS = """
q1   lineitem; group 0; sort 1; out/5 2
q2   region; nation; join 0 1; supplier > 1; join 2 3; partsupp > 30; join 4 5 > 6; part > 1;
     join 6 7 > 1; nation; join 0 9; supplier > 1; join 10 11; join 5 12 > 18; part > 1;
     join 13 14 > 1; join 8 15; total 16
q3   customer > 2; orders > 35; join 0 1 > 12; lineitem > 110; join 2 3; total 4
q4   lineitem > 50; orders > 16; join 0 1; group 2; sort 3; out/6 4
q5   region; nation; join 0 1; customer > 6; join 2 3 > 2; orders > 30; join 4 5 > 6;
     lineitem > 230; join 6 7 > 20; supplier > 1; join 8 9; group 10; sort 11; out/6 12
q6   lineitem; total 0
q7   nation; supplier > 1; join 0 1; lineitem > 90; join 2 3 > 12; orders > 45; join 4 5 > 12;
     customer > 5; join 0 7 > 1; join 6 8; group 9; sort 10; out/5 11
q8   part > 1; lineitem > 260; join 0 1 > 4; supplier > 1; join 2 3 > 4; orders > 40;
     join 4 5 > 3; customer > 5; join 6 7 > 2; nation; region; join 9 10; join 8 11 > 1; nation;
     join 12 13; group 14; sort 15; out/3 16
q9   part > 3; lineitem > 300; join 0 1 > 30; supplier > 1; join 2 3 > 30; partsupp > 45;
     join 4 5 > 32; orders > 45; join 6 7 > 1; nation; join 8 9; group 10; sort 11; out/176 12
q10  customer > 15; orders > 12; join 0 1 > 16; lineitem > 65; join 2 3 > 24; nation;
     join 4 5 > 14; group 6; total 7
q11  nation; supplier > 1; join 0 1; partsupp > 30; join 2 3; total 4; partsupp 5 > 36;
     join 2 6 > 2; group 7; sort 8; out/1 9
q12  lineitem > 5; orders > 50; join 0 1; group 2; sort 3; out/3 4
q13  customer > 2; orders > 75; join 0 1 > 3; group 2; group 3; sort 4; out/46 5
q14  lineitem > 15; part > 5; join 0 1; total 2
q15  lineitem > 14; group 0 > 2; total 1; supplier 2 > 1; join 1 2 3 > 1; sort 4; out/2 5
q16  partsupp > 24; part > 7; join 0 1 > 9; supplier; join 2 3 > 9; group 4 > 4; group 5; sort 6;
     out/200 7
q17  part; lineitem > 130; join 0 1 > 1; lineitem > 130; join 2 3; total 4
q18  lineitem > 55; group 0 > 9; orders > 80; lineitem > 150; join 1 2 3; customer > 8; join 4 5;
     total 6
q19  part > 1; lineitem > 25; join 0 1; total 2
q20  nation; supplier > 2; join 0 1; part; partsupp > 34; join 3 4 > 1; lineitem > 90;
     group 6 > 20; join 5 7; join 2 8; sort 9; out/200 10
q21  lineitem > 520; group 0 > 150; lineitem > 420; group 2 > 130; nation; supplier > 2;
     join 4 5; lineitem > 150; join 6 7 > 12; orders > 32; group 3 > 40; join 8 9 10 > 18;
     group 1 > 40; join 11 12; group 13; total 14
q22  customer > 1; total 0; customer 1 > 2; orders 1 > 28; join 2 3; group 4; sort 5; out/8 6
"""


class PlanStage(NamedTuple):
    """One stage of a query, at any database size."""

    table: str  # the table scanned; empty: a shuffle
    parents: tuple[int, ...]
    tasks: int  # of a shuffle; a scan has one a block
    mb_in: float  # shuffled in, for each gigabyte of the database
    mb_out: float


def query_plans() -> list[tuple[PlanStage, ...]]:
    """Parse the 22 plans."""
    return [_plan(text) for text in re.split(r"^q\d+", _PLANS, flags=re.MULTILINE)[1:]]


def _plan(plan: str) -> tuple[PlanStage, ...]:
    stages: list[PlanStage] = []
    for text in plan.split(";"):
        head, _, volume = text.partition(">")
        kind, *numbers = head.split()
        parents = tuple(map(int, numbers))
        table = kind if kind in TABLES else ""
        shape, _, count = kind.partition("/")
        tasks = 1 if shape == "total" else int(count or SHUFFLE_TASKS)
        mb_in = 0.0 if table else sum(stages[parent].mb_out for parent in parents)
        stages.append(PlanStage(table, parents, tasks, mb_in, float(volume or 0)))
    return tuple(stages)


def stage_memory(job: str, stage: int) -> float:
    """Return a stage's memory demand: uniform in (0, 1], fixed by a hash of job name and stage."""
    digest = hashlib.sha256(f"{job}/{stage}".encode()).digest()
    return (int.from_bytes(digest[:4], "big") + 1) / 2**32
