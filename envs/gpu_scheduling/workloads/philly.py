"""Imports jobs of Microsoft's Philly cluster, from a CSV file with one row a job.

Its times are whole minutes: 14 days of arrivals, runs of 20 minutes to 3 days. A job tells how many
GPUs it used, and Philly spread a job over machines where it had to, so each GPU is an instance
here. The file says nothing of cores: each instance takes 6, the commonest request at PAI.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from loadmaster.envs.gpu_scheduling.cluster import WHOLE
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

_COLUMNS = ("job_id", "user", "num_gpu", "submit_time", "model_name", "duration")
_FILE = "philly_30940_jobs.csv.gz"
_CORES = 6
# Large layers, much to exchange: the two old networks hold most of their weights in dense layers.
_SHARES = {
    "vgg16": 0.6,
    "alexnet": 0.6,
    "resnet101": 0.4,
    "inception_v3": 0.25,
    "mobilenet_v2": 0.2,
}


def load(settings: GpuSchedulingSettings) -> Trace:
    return _load(find_file(settings, f"alibaba_gpu/{_FILE}", _FILE))


@lru_cache(maxsize=2)
def _load(path: Path) -> Trace:
    rows = list(read_rows(path, _COLUMNS))
    jobs = [_job(row) for row in rows if row.whole("num_gpu")]
    return build_trace("philly", jobs, path, told(len(jobs), len(rows), path))


def _job(row: Row) -> RecordedJob:
    job_id, gpus, model = row.whole("job_id"), row.whole("num_gpu", 1), row.text("model_name")
    share = _SHARES.get(model)
    if share is None:
        share = typical_share(f"philly/{model}", gpus)
    return RecordedJob(
        job_id=job_id,
        arrival_s=60 * row.number("submit_time"),
        duration_s=max(1.0, 60 * row.number("duration")),
        instances=gpus,
        gpu=WHOLE,
        cpu=_CORES * WHOLE,
        gpu_type=ANY_TYPE,
        comm=share if gpus > 1 else 0.0,
        user=row.text("user"),
    )
