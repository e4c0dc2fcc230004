"""Generated workloads of random DAGs, which need no data: `alibaba-like` and `random-dags`.

A stage has 0 to 3 parents among the earlier ones, which gives wide and flat DAGs. Logarithms of
task counts and durations are normal, around a mean that is drawn for each job.

- `alibaba-like`: fitted by hand to the production jobs of `alibaba` (docs/workloads.md compares):
  work from seconds to days, most stages of a single task, and equal tasks on any executor.
- `random-dags`: jobs of seconds to an hour whose tasks slow down as their job gets executors, and
  whose first task on an executor pays for set-up. How much differs from job to job.
"""

from functools import lru_cache

import numpy as np

from loadmaster.envs.dag_scheduling.jobs import Job, Stage, Workload, build_workload, equal_tasks

_SEED = 2018  # fixes all jobs
_PARENTS = (0.25, 0.54, 0.12, 0.09)  # shares of stages with 0, 1, 2 and 3 parents
_LEVELS = (5, 20, 50, 100, 200)  # executors of the job, with own durations


@lru_cache(maxsize=1)
def alibaba_like() -> Workload:
    """Generate 600 jobs."""
    random, jobs = np.random.default_rng(_SEED), []
    for number in range(600):
        stages = _count(random, median=8, spread=1.4, least=2, most=200)
        common = random.standard_normal()  # long jobs have more tasks
        log_ms = 9.3 + 1.7 * (0.6 * common + 0.8 * random.standard_normal())
        median = 12 * float(np.exp(1.3 * common))
        made = []
        for stage in range(stages):
            several = random.random() < 0.4
            tasks = _count(random, median, spread=1.7, least=1, most=20_000) if several else 1
            ms = int(np.clip(np.exp(log_ms + random.standard_normal()), 500, 6_000_000))
            made.append(equal_tasks(tasks, ms, *_parents(random, stage)))
        jobs.append(Job(f"alibaba-like-{number}", tuple(made)))
    return build_workload("alibaba-like", jobs)


@lru_cache(maxsize=1)
def random_dags() -> Workload:
    """Generate 300 jobs."""
    random, jobs = np.random.default_rng(_SEED + 1), []
    for number in range(300):
        stages = _count(random, median=9, spread=0.8, least=1, most=60)
        log_ms, tasks = 7.2 + random.standard_normal(), float(np.exp(random.normal(2.5, 1.0)))
        slowdown, setup = random.uniform(0, 0.8), random.uniform(0, 1.5)
        made = []
        for stage in range(stages):
            ms = float(np.exp(log_ms + 0.7 * random.standard_normal()))
            rest = {level: _durations(random, ms, level, slowdown) for level in _LEVELS}
            first = {level: _durations(random, ms * (1 + setup), level, slowdown) for level in rest}
            count = _count(random, tasks, spread=0.9, least=1, most=600)
            made.append(Stage(count, _parents(random, stage), first, rest, first))
        jobs.append(Job(f"random-dags-{number}", tuple(made)))
    return build_workload("random-dags", jobs)


def _count(random: np.random.Generator, median: float, spread: float, least: int, most: int) -> int:
    drawn = round(median * float(np.exp(spread * random.standard_normal())))
    return min(max(drawn, least), most)


def _parents(random: np.random.Generator, stage: int) -> tuple[int, ...]:
    wanted = min(int(random.choice(len(_PARENTS), p=_PARENTS)), stage)
    return tuple(sorted(random.choice(stage, wanted, replace=False).tolist()))


def _durations(
    random: np.random.Generator, ms: float, executors: int, slowdown: float
) -> list[int]:
    """Durations of 16 tasks in a job of that many executors, in ms."""
    mean = ms * (1 + slowdown * executors / 100)
    return np.maximum(mean * random.lognormal(-0.03, 0.25, 16), 1).astype(int).tolist()
