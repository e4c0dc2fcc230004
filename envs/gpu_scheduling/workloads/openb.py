"""Imports pods of Alibaba's GPU trace of 2023 (openb): one row a pod, one instance each.

A pod ran from `scheduled_time` to `deletion_time`. Pods that were never scheduled, and those
without a GPU, are left out. A pod that names several types of GPU (T4|P100) may run anywhere. The
trace tells no users; its classes of service stand for them.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

from loadmaster.envs.gpu_scheduling.cluster import type_names
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads.traces import (
    RecordedJob,
    Row,
    Trace,
    build_trace,
    find_file,
    read_rows,
)

_COLUMNS = (
    "name",
    "cpu_milli",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "qos",
    "creation_time",
    "deletion_time",
    "scheduled_time",
)
_FILE = "openb_pod_list_default.csv.gz"


def load(settings: GpuSchedulingSettings) -> Trace:
    file = find_file(settings, f"alibaba_gpu/v2023/{_FILE}", f"v2023/{_FILE}", _FILE)
    return _load(file, type_names(settings))


@lru_cache(maxsize=2)
def _load(path: Path, types: tuple[str, ...]) -> Trace:
    jobs: list[RecordedJob] = []
    without_gpu = unscheduled = 0
    for number, row in enumerate(read_rows(path, _COLUMNS)):
        if row.number("num_gpu") == 0:
            without_gpu += 1
        elif not row.text("scheduled_time"):
            unscheduled += 1
        else:
            jobs.append(_job(number, row, types))
    left_out = f"left out: {without_gpu} without a GPU, {unscheduled} never scheduled"
    return build_trace("openb", jobs, path, f"{len(jobs)} pods of {path.name}; {left_out}")


def _job(number: int, row: Row, types: tuple[str, ...]) -> RecordedJob:
    started = row.number("scheduled_time")
    ended = row.number("deletion_time")
    if ended < started:
        raise row.fault("deletion_time", f"no less than its scheduled_time, {started:g}")
    any_of_several = "|" in row.text("gpu_spec")
    return RecordedJob(
        job_id=number,
        arrival_s=row.number("creation_time"),
        duration_s=max(1.0, ended - started),
        instances=1,
        # Thousandths of one GPU, rounded up to percent; whole ones where a pod has several.
        gpu=row.whole("num_gpu", 1) * max(1, math.ceil(row.number("gpu_milli") / 10)),
        cpu=math.ceil(row.number("cpu_milli") / 10),
        gpu_type=ANY_TYPE if any_of_several else row.gpu_type("gpu_spec", types),
        comm=0.0,
        user=row.text("qos"),
    )
