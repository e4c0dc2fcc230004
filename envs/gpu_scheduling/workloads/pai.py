"""Imports jobs of Alibaba's PAI cluster, in the format of its public simulator (2020).

One row a job: how many instances, what each asks for in cores and GPUs, how long they ran.
Durations are whole seconds, 1 at least. MISC stands for many older kinds of GPU, so a job that
ran there may run anywhere. The trace says nothing of communication.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from loadmaster.envs.gpu_scheduling.cluster import WHOLE, type_names
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads.pai_like import typical_share
from loadmaster.envs.gpu_scheduling.workloads.traces import (
    RecordedJob,
    Row,
    Trace,
    build_trace,
    find_file,
    read_rows,
    told,
)

_COLUMNS = (
    "job_id",
    "num_inst",
    "submit_time",
    "num_cpu",
    "num_gpu",
    "gpu_type",
    "duration",
    "user",
)
_FILE = "pai_jobs_recovered_sample.csv"


def load(settings: GpuSchedulingSettings) -> Trace:
    file = find_file(settings, f"alibaba_gpu/v2020/{_FILE}", f"v2020/{_FILE}", _FILE)
    return _load(file, type_names(settings))


@lru_cache(maxsize=2)
def _load(path: Path, types: tuple[str, ...]) -> Trace:
    rows = list(read_rows(path, _COLUMNS))
    jobs = [_job(row, types) for row in rows if row.number("num_gpu") > 0]
    return build_trace("pai", jobs, path, told(len(jobs), len(rows), path))


def _job(row: Row, types: tuple[str, ...]) -> RecordedJob:
    job_id, instances = row.whole("job_id"), row.whole("num_inst", 1)
    gpu_type = row.gpu_type("gpu_type", types)
    return RecordedJob(
        job_id=job_id,
        arrival_s=row.number("submit_time"),
        duration_s=float(max(1, int(row.number("duration")))),
        instances=instances,
        gpu=max(1, round(row.number("num_gpu") * WHOLE)),
        cpu=round(row.number("num_cpu") * WHOLE),
        gpu_type=ANY_TYPE if row.text("gpu_type") == "MISC" else gpu_type,
        comm=typical_share(f"pai/{job_id}", instances),
        user=row.text("user"),
    )
