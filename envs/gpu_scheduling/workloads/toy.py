"""Five jobs small enough to schedule with pencil and paper (`--set arrivals=trace`).

| job | arrives | runs | instances | each asks for      | GPU seconds |
|-----|---------|------|-----------|--------------------|-------------|
| 0   |     0 s | 10 s |         1 | 1 GPU, 1 core      |          10 |
| 1   |     0 s |  4 s |         1 | half a GPU, 1 core |           2 |
| 2   |     1 s |  6 s |         2 | 1 GPU, 2 cores     |          12 |
| 3   |     2 s |  2 s |         1 | half a GPU, 1 core |           1 |
| 4   |     3 s |  8 s |         4 | 1 GPU, 1 core      |          32 |

Jobs 0, 2 and 4 are one user's, 1 and 3 another's. The two gangs communicate half of their time.
"""

from __future__ import annotations

from functools import lru_cache

from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads.traces import RecordedJob, Trace, build_trace

# arrival, duration, instances, GPU and CPU in percent, communication, user
_JOBS = (
    (0, 10, 1, 100, 100, 0.0, "a"),
    (0, 4, 1, 50, 100, 0.0, "b"),
    (1, 6, 2, 100, 200, 0.5, "a"),
    (2, 2, 1, 50, 100, 0.0, "b"),
    (3, 8, 4, 100, 100, 0.5, "a"),
)


def load(settings: GpuSchedulingSettings) -> Trace:
    return _toy()


@lru_cache(maxsize=1)
def _toy() -> Trace:
    jobs = [
        RecordedJob(number, arrival, duration, instances, gpu, cpu, ANY_TYPE, comm, user)
        for number, (arrival, duration, instances, gpu, cpu, comm, user) in enumerate(_JOBS)
    ]
    return build_trace("toy", jobs, "toy", "five jobs of a few seconds")
