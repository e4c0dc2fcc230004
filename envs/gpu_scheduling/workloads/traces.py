"""Recorded workloads: public traces in CSV files, and a toy.

A `TraceFormat` describes one trace: its file, its columns, and how rows become jobs. Rows without a
GPU are left out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.jobs import (
    ANY_TYPE,
    WHOLE,
    Jobs,
    Workload,
    gpu_seconds,
    select_jobs,
)
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads.pai_like import typical_share
from loadmaster.envs.traces import CsvTable, read_csv, trace_path

Types = tuple[str, ...]


@dataclass(frozen=True)
class TraceFormat:
    """A public trace; `parse` returns its jobs, and the numbers of rows left out by reason."""

    name: str
    file: str  # path in the folder of traces
    columns: tuple[str, ...]
    parse: Callable[[CsvTable, Types], tuple[Jobs, dict[str, int]]]
    unit: str = "jobs"

    def load(self, settings: GpuSchedulingSettings) -> Workload:
        """Read the trace; the setting `data` may name the file or any folder above it."""
        path = trace_path(settings.workload, settings.data)
        if path.is_dir():
            parts = Path(self.file).parts
            candidates = [path.joinpath(*parts[skipped:]) for skipped in range(len(parts))]
            file = next((candidate for candidate in candidates if candidate.is_file()), None)
            if file is None:
                raise InputError(f"{path}: no trace found; expected {self.file} in it")
            path = file
        return _load(self, path, tuple(settings.known_gpu_types))


@lru_cache(maxsize=4)
def _load(trace: TraceFormat, path: Path, types: Types) -> Workload:
    jobs, left_out = trace.parse(read_csv(path, trace.columns), types)
    if not len(jobs.job_id):
        raise InputError(f"{path}: holds no GPU jobs; expected at least one")
    ids, counts = np.unique(jobs.job_id, return_counts=True)
    if (counts > 1).any():
        raise InputError(f"{path}: job {ids[counts > 1][0]} occurs twice; expected each job once")
    reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items() if count)
    without = f"; left out: {reasons}" if reasons else ""
    return _build_trace(trace.name, f"{len(ids)} {trace.unit} of {path.name}{without}", jobs)


def _build_trace(name: str, description: str, jobs: Jobs) -> Workload:
    """Sort jobs by (arrival, id), and number users by their first jobs."""
    jobs = select_jobs(jobs, np.lexsort((jobs.job_id, jobs.arrival_s)))
    _, first, user = np.unique(jobs.user, return_index=True, return_inverse=True)
    jobs = jobs._replace(user=np.argsort(np.argsort(first))[user])
    mean_gpu_s, size = float(gpu_seconds(jobs).mean()), len(jobs.job_id)
    return Workload(name, description, partial(_draw, jobs), mean_gpu_s, size)


def _draw(recorded: Jobs, count: int, consecutive: bool, rng: np.random.Generator) -> Jobs:
    size = len(recorded.job_id)
    if consecutive:
        first = int(rng.integers(size - count + 1))
        return select_jobs(recorded, slice(first, first + count))
    return select_jobs(recorded, rng.permutation(size)[:count])


def _codes(texts: Sequence[str]) -> NDArray[np.int64]:
    """Number equal texts alike."""
    return np.unique(np.array(texts, object), return_inverse=True)[1].astype(np.int64)


def _gpu_types(rows: CsvTable, column: str, types: Types) -> NDArray[np.int64]:
    """Indices in `types`; ANY_TYPE for an empty field and for alternatives (T4|P100)."""
    numbers = np.full(len(rows), ANY_TYPE)
    for row, name in enumerate(rows.text(column)):
        if name and "|" not in name:
            if name not in types:
                raise rows.fault(row, column, f"a GPU type: {', '.join(types)}")
            numbers[row] = types.index(name)
    return numbers


def _comm_shares(names: Sequence[str], instances: NDArray[np.int64]) -> NDArray[np.float64]:
    """Typical shares of communication by name; 0 for jobs of one instance."""
    shares = {name: typical_share(name) for name in set(np.array(names)[instances > 1].tolist())}
    return np.array([shares.get(name, 0.0) for name in names]) * (instances > 1)


def _parse_pai(table: CsvTable, types: Types) -> tuple[Jobs, dict[str, int]]:
    """Alibaba's PAI cluster, in the format of its public simulator (2020): one row per job.

    Durations are whole seconds, 1 at least. MISC stands for several older GPU types, so these jobs
    may run on any type. The trace has no data on communication.
    """
    with_gpu = table.numbers("num_gpu") > 0
    rows = table.select(with_gpu)
    job_id, instances = rows.whole_numbers("job_id"), rows.whole_numbers("num_inst", 1)
    gpu_type = _gpu_types(rows, "gpu_type", types)
    jobs = Jobs(
        arrival_s=rows.numbers("submit_time"),
        duration_s=np.maximum(1.0, np.floor(rows.numbers("duration"))),
        instances=instances,
        gpu=np.maximum(1, np.rint(rows.numbers("num_gpu") * WHOLE).astype(np.int64)),
        cpu=np.rint(rows.numbers("num_cpu") * WHOLE).astype(np.int64),
        gpu_type=np.where(np.array(rows.text("gpu_type")) == "MISC", ANY_TYPE, gpu_type),
        comm=_comm_shares([f"pai/{number}" for number in job_id], instances),
        user=_codes(rows.text("user")),
        job_id=job_id,
    )
    return jobs, {"without a GPU": (~with_gpu).sum()}


_PHILLY_CORES = 6
# Models with large layers exchange more data; VGG and AlexNet have most weights in dense layers.
_PHILLY_COMM = {"vgg16": 0.6, "alexnet": 0.6, "resnet101": 0.4}
_PHILLY_COMM |= {"inception_v3": 0.25, "mobilenet_v2": 0.2}


def _parse_philly(table: CsvTable, types: Types) -> tuple[Jobs, dict[str, int]]:
    """Microsoft's Philly cluster (2017): one row per job, times in whole minutes.

    Philly spread jobs over machines when necessary, so each GPU of a job is an instance. The file
    has no data on cores: each instance takes 6, the most frequent request at PAI.
    """
    with_gpu = table.whole_numbers("num_gpu") > 0
    rows = table.select(with_gpu)
    instances, models = rows.whole_numbers("num_gpu"), rows.text("model_name")
    typical = _comm_shares([f"philly/{model}" for model in models], instances)
    known = np.array([_PHILLY_COMM.get(model, np.nan) for model in models])
    jobs = Jobs(
        arrival_s=60 * rows.numbers("submit_time"),
        duration_s=np.maximum(1.0, 60 * rows.numbers("duration")),
        instances=instances,
        gpu=np.full(len(rows), WHOLE),
        cpu=np.full(len(rows), _PHILLY_CORES * WHOLE),
        gpu_type=np.full(len(rows), ANY_TYPE),
        comm=np.where(np.isnan(known), typical, known * (instances > 1)),
        user=_codes(rows.text("user")),
        job_id=rows.whole_numbers("job_id"),
    )
    return jobs, {"without a GPU": (~with_gpu).sum()}


def _parse_openb(table: CsvTable, types: Types) -> tuple[Jobs, dict[str, int]]:
    """Pods of Alibaba's GPU cluster (2023, openb): one instance each.

    A pod ran from `scheduled_time` to `deletion_time`; pods that were never scheduled are left out.
    The trace has no users: its classes of service replace them.
    """
    with_gpu = table.numbers("num_gpu") > 0
    scheduled = np.array(table.text("scheduled_time")) != ""
    rows = table.select(with_gpu & scheduled)
    start_s, end_s = rows.numbers("scheduled_time"), rows.numbers("deletion_time")
    if (end_s < start_s).any():
        row = int(np.argmax(end_s < start_s))
        expected = f"no less than its scheduled_time, {start_s[row]:g}"
        raise rows.fault(row, "deletion_time", expected)
    # Thousandths of one GPU, rounded up to percent; whole GPUs if a pod has several.
    percent = np.maximum(1, np.ceil(rows.numbers("gpu_milli") / 10)).astype(np.int64)
    jobs = Jobs(
        arrival_s=rows.numbers("creation_time"),
        duration_s=np.maximum(1.0, end_s - start_s),
        instances=np.ones(len(rows), np.int64),
        gpu=rows.whole_numbers("num_gpu", 1) * percent,
        cpu=np.ceil(rows.numbers("cpu_milli") / 10).astype(np.int64),
        gpu_type=_gpu_types(rows, "gpu_spec", types),
        comm=np.zeros(len(rows)),
        user=_codes(rows.text("qos")),
        job_id=np.flatnonzero(with_gpu & scheduled),
    )
    never = (with_gpu & ~scheduled).sum()
    return jobs, {"without a GPU": (~with_gpu).sum(), "never scheduled": never}


def _parse_jobs(table: CsvTable, types: Types) -> tuple[Jobs, dict[str, int]]:
    """Jobs of a user: one row each, with all that an episode takes; `gpu_type` empty: any type."""
    comm = table.numbers("comm", blank=0.0)
    if (comm > 1).any():
        raise table.fault(int(np.argmax(comm > 1)), "comm", "a share from 0 to 1")
    jobs = Jobs(
        arrival_s=table.numbers("arrival_s"),
        duration_s=np.maximum(1.0, table.numbers("duration_s")),
        instances=table.whole_numbers("instances", 1),
        gpu=np.maximum(1, np.rint(table.numbers("gpus") * WHOLE).astype(np.int64)),
        cpu=np.rint(table.numbers("cpus") * WHOLE).astype(np.int64),
        gpu_type=_gpu_types(table, "gpu_type", types),
        comm=comm,
        user=_codes(table.text("user")),
        job_id=table.whole_numbers("job_id"),
    )
    return jobs, {}


def csv_lines(jobs: Jobs, types: Types) -> Iterator[str]:
    """The lines of a file that workload `jobs` reads; `types` name the numbers in `gpu_type`."""
    yield ",".join(JOBS.columns) + "\n"
    for row in zip(*(column.tolist() for column in jobs), strict=True):
        arrival_s, duration_s, instances, gpu, cpu, gpu_type, comm, user, job_id = row
        name = "" if gpu_type == ANY_TYPE else types[gpu_type]
        fields = (job_id, f"{arrival_s:.3f}", f"{duration_s:.3f}", instances, gpu / WHOLE)
        yield ",".join(map(str, (*fields, cpu / WHOLE, name, round(comm, 6), user))) + "\n"


JOBS = TraceFormat(
    "jobs",
    "jobs.csv",
    (
        *("job_id", "arrival_s", "duration_s", "instances", "gpus", "cpus"),
        *("gpu_type", "comm", "user"),
    ),
    _parse_jobs,
)
PAI = TraceFormat(
    "pai",
    "alibaba_gpu/v2020/pai_jobs_recovered_sample.csv",
    ("job_id", "num_inst", "submit_time", "num_cpu", "num_gpu", "gpu_type", "duration", "user"),
    _parse_pai,
)
PHILLY = TraceFormat(
    "philly",
    "alibaba_gpu/philly_30940_jobs.csv.gz",
    ("job_id", "user", "num_gpu", "submit_time", "model_name", "duration"),
    _parse_philly,
)
OPENB = TraceFormat(
    "openb",
    "alibaba_gpu/v2023/openb_pod_list_default.csv.gz",
    (
        *("num_gpu", "gpu_milli", "cpu_milli", "gpu_spec", "qos"),
        *("creation_time", "deletion_time", "scheduled_time"),
    ),
    _parse_openb,
    unit="pods",
)


def load_toy(settings: GpuSchedulingSettings) -> Workload:
    """Five jobs for schedules that can be checked by hand (`--set arrivals=trace`).

    Jobs 0, 2 and 4 belong to one user, 1 and 3 to another.
    """
    jobs = Jobs(
        arrival_s=np.array([0.0, 0.0, 1.0, 2.0, 3.0]),
        duration_s=np.array([10.0, 4.0, 6.0, 2.0, 8.0]),
        instances=np.array([1, 1, 2, 1, 4]),
        gpu=np.array([100, 50, 100, 50, 100]),
        cpu=np.array([100, 100, 200, 100, 100]),
        gpu_type=np.full(5, ANY_TYPE),
        comm=np.array([0.0, 0.0, 0.5, 0.0, 0.5]),
        user=np.array([0, 1, 0, 1, 0]),
        job_id=np.arange(5),
    )
    return _build_trace("toy", "five jobs of a few seconds", jobs)
