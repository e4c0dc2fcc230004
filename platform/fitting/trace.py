"""Traces that a user brings: their format is recognised by content, their jobs split by time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.envs.alibaba import COLUMNS as ALIBABA_COLUMNS
from loadmaster.envs.dag_scheduling.jobs import RecordedJob
from loadmaster.envs.dag_scheduling.workloads import alibaba, job_file, spark, spark_files
from loadmaster.envs.errors import InputError, counted
from loadmaster.envs.gpu_scheduling.cluster import build_cluster, capacity
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, Jobs, select_jobs
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads.traces import (
    JOBS,
    OPENB,
    PAI,
    PHILLY,
    Types,
    csv_lines,
)
from loadmaster.envs.traces import column_names, read_lines

DAG, GPU = "dag_scheduling", "gpu_scheduling"
GPU_FORMATS = {"pai": PAI, "philly": PHILLY, "openb": OPENB, "gpu-jobs": JOBS}
FORMATS = ("spark", "alibaba", "dag-jobs", *GPU_FORMATS)
TRAINING_SHARE = 0.7  # of the jobs, the earlier ones
FEWEST_JOBS = 10


@dataclass(frozen=True)
class UserTrace:
    """Jobs of a trace in the order of their arrival."""

    format: str
    environment: str
    file: str  # name of the workload's file
    lines: Callable[[slice], Iterator[str]]  # of that file, with the jobs of a slice
    arrival_s: Sequence[float]
    description: str  # of the trace and of what was left out, in words
    slots: int | None = None  # executors of the recorded cluster, where the trace has them
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the environment, that follow
    held_by: Callable[[Any], UserTrace] | None = None  # the jobs that a cluster can hold

    @property
    def size(self) -> int:
        return len(self.arrival_s)

    @property
    def split(self) -> tuple[slice, slice]:
        """Jobs to tune and train on, and the later ones to test on."""
        first = max(1, min(self.size - 1, round(TRAINING_SHARE * self.size)))
        return slice(0, first), slice(first, self.size)

    @property
    def mean_gap_s(self) -> float:
        """Mean time between arrivals in the training part; 0 if all arrive at once."""
        part = self.arrival_s[self.split[0]]
        return (part[-1] - part[0]) / (len(part) - 1) if len(part) > 1 else 0.0


def read_trace(path: Path, forced: str | None) -> UserTrace:
    """Read a trace in the format `forced`, or in the one that its content has."""
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; expected a trace")
    known = forced or recognise(path)
    if known not in FORMATS:
        raise InputError(f"--format {known!r}; expected one of: {', '.join(FORMATS)}")
    if known != "spark" and path.is_dir():
        raise InputError(f"{path}: a folder; expected a file, or a folder of Spark event logs")
    trace = _gpu_trace(path, known) if known in GPU_FORMATS else _dag_trace(path, known)
    check_size(trace)
    return trace


def check_size(trace: UserTrace) -> None:
    """Refuse a trace with too few jobs for two parts."""
    if trace.size < FEWEST_JOBS:
        raise InputError(
            f"{trace.description}: {counted(trace.size, 'usable job')}; expected at least "
            f"{FEWEST_JOBS}, some to tune on and later ones to test on"
        )


def recognise(path: Path) -> str:
    """The format of a file or folder by its first line."""
    if path.is_dir():
        if spark_files.is_event_log(path):
            return "spark"
        raise InputError(f"{path}: no Spark event log in it; expected one, or a file as trace")
    if spark_files.is_event_log(path):
        return "spark"
    first = next(read_lines(path), (0, b""))[1]
    if first.lstrip().startswith(b"{") and b'"stages"' in first:
        return "dag-jobs"
    if first and b"\0" not in first:
        names = column_names(path)
        for name, known in GPU_FORMATS.items():
            if set(known.columns) <= set(names):
                return name
        if set(ALIBABA_COLUMNS) <= set(names) or _is_batch_task(names):
            return "alibaba"
    raise InputError(
        f"{path}, line 1: not recognised; expected a Spark event log, Alibaba's batch_task CSV, a "
        f"PAI-like CSV ({','.join(PAI.columns)}), or --format {'|'.join(FORMATS)}"
    )


def _is_batch_task(fields: Sequence[str]) -> bool:
    """Whether a line without header is one of batch_task.csv: numbers where times are."""
    if len(fields) != len(ALIBABA_COLUMNS):
        return False
    row = dict(zip(ALIBABA_COLUMNS, fields, strict=True))
    return all(row[name].removeprefix("-").isdigit() for name in ("start_time", "end_time"))


def _dag_trace(path: Path, known: str) -> UserTrace:
    slots, left_out = None, ""
    settings: dict[str, Any] = {}
    if known == "spark":
        found = spark.read_log(path)
        jobs, slots = found.jobs, found.slots
        settings["warmup_s"] = 0.0  # what a fresh executor costs is in the measured durations
        if found.applications == 1:
            settings["moving_delay_s"] = 0.0  # its executors serve all its jobs
        left_out = ", ".join(f"{count} {why}" for why, count in found.left_out.items())
    elif known == "alibaba":
        jobs, left_out = alibaba.read_jobs(path)
    else:
        jobs = job_file.read_jobs(path)
    jobs = sorted(jobs, key=lambda each: each.arrival_s)
    begin = jobs[0].arrival_s
    jobs = [RecordedJob(each.arrival_s - begin, each.job) for each in jobs]
    stages = sum(len(each.job.stages) for each in jobs)
    return UserTrace(
        format=known,
        environment=DAG,
        file=job_file.NAME,
        lines=lambda part: job_file.write_lines(jobs[part]),
        arrival_s=[each.arrival_s for each in jobs],
        description=_describe(path, len(jobs), f"of {counted(stages, 'stage')}", left_out),
        slots=slots,
        settings=settings,
    )


def _gpu_trace(path: Path, known: str) -> UserTrace:
    settings = GpuSchedulingSettings(workload=known, data=path)
    workload = GPU_FORMATS[known].load(settings)
    assert workload.size is not None
    jobs = workload.draw(workload.size, True, np.random.default_rng(0))
    _, _, left_out = workload.description.partition("; left out: ")
    return _of_gpu_jobs(path, known, jobs, tuple(settings.known_gpu_types), left_out)


def _of_gpu_jobs(path: Path, known: str, jobs: Jobs, types: Types, left_out: str) -> UserTrace:
    jobs = jobs._replace(arrival_s=jobs.arrival_s - jobs.arrival_s[0])

    def held_by(settings: GpuSchedulingSettings) -> UserTrace:
        """Without jobs that the empty cluster cannot hold: they would count in the load."""
        any_type = jobs._replace(gpu_type=np.full_like(jobs.gpu_type, ANY_TYPE))
        demand = jobs if settings.require_types else any_type
        fits = capacity(demand, build_cluster(settings)) >= jobs.instances
        if fits.all() or settings.oversized == "queue":
            return trace
        if not fits.any():
            raise InputError(f"{path}: no job fits the cluster; expected a larger one by --set")
        reasons = f"{(~fits).sum()} too large for the cluster"
        reasons = f"{left_out}, {reasons}" if left_out else reasons
        return _of_gpu_jobs(path, known, select_jobs(jobs, fits), types, reasons)

    trace = UserTrace(
        format=known,
        environment=GPU,
        file=JOBS.file,
        lines=lambda part: csv_lines(select_jobs(jobs, part), types),
        arrival_s=jobs.arrival_s.tolist(),
        description=_describe(path, len(jobs.job_id), "with GPUs", left_out),
        held_by=held_by,
    )
    return trace


def _describe(path: Path, size: int, content: str, left_out: str) -> str:
    text = f"{path.name}: {counted(size, 'job')} {content}"
    return f"{text}; left out: {left_out}" if left_out else text
