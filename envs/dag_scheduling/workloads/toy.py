"""Three jobs small enough to schedule with pencil and paper.

Every task of a stage takes the same time, whichever executor runs it and however many there are.

| job     | stages                                          | work | critical path |
|---------|-------------------------------------------------|------|---------------|
| single  | 0: 4 tasks x 1 s                                |  4 s |           1 s |
| chain   | 0: 2 x 1 s -> 1: 1 x 2 s -> 2: 2 x 1 s          |  6 s |           4 s |
| diamond | 0: 1 x 1 s -> (1: 2 x 2 s, 2: 4 x 1 s) -> 3: 1 x 1 s | 10 s |      4 s |
"""

from __future__ import annotations

from functools import lru_cache

from loadmaster.envs.dag_scheduling.jobs import Job, Stage, Workload, build_workload
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings


def load(settings: DagSchedulingSettings) -> Workload:
    return _toy()


@lru_cache(maxsize=1)
def _toy() -> Workload:
    jobs = (
        Job("single", (_stage(4, 1000),)),
        Job("chain", (_stage(2, 1000), _stage(1, 2000, 0), _stage(2, 1000, 1))),
        Job(
            "diamond",
            (_stage(1, 1000), _stage(2, 2000, 0), _stage(4, 1000, 0), _stage(1, 1000, 1, 2)),
        ),
    )
    return build_workload("toy", jobs, "constant durations, no waves, no warm-up")


def _stage(tasks: int, duration_ms: int, *parents: int) -> Stage:
    always = {1: [duration_ms]}
    return Stage(tasks, parents, first=always, rest=always, fresh=always)
