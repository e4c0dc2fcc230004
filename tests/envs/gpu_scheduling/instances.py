"""Small episodes for tests, drawn by hypothesis or written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import HealthCheck
from hypothesis import settings as given_settings
from hypothesis import strategies as st

from loadmaster.envs.gpu_scheduling import episode as runs
from loadmaster.envs.gpu_scheduling.baselines import BASELINES
from loadmaster.envs.gpu_scheduling.cluster import build_cluster
from loadmaster.envs.gpu_scheduling.episode import Episode, EpisodeResult
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, Jobs, Workload
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings, MachineGroup

TYPES = ("T4", "P100", "V100")
ONE_MACHINE = MachineGroup(count=1, gpus=4, gpu="V100", cpus=32)
TOY: dict[str, Any] = {
    "workload": "toy",
    "arrivals": "trace",
    "machines": (ONE_MACHINE,),
    "interference": False,
    "stragglers": 0,
}

many = given_settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

# arrival, duration, instances, GPU and CPU in percent, type, communication, user
Row = tuple[float, float, int, int, int, int, float, int]


def job(
    arrival: float,
    duration: float,
    gpu: int = 100,
    instances: int = 1,
    comm: float = 0.0,
    user: int = 0,
) -> Row:
    return arrival, duration, instances, gpu, 100, ANY_TYPE, comm, user


def jobs_of(rows: Sequence[Row]) -> Jobs:
    """Sort rows by arrival; of equal arrivals, the later row gets the lower id."""
    ids = np.arange(len(rows))[::-1]
    order = np.lexsort((ids, [row[0] for row in rows]))
    columns = [np.array([rows[place][i] for place in order]) for i in range(8)]
    arrival, duration, instances, gpu, cpu, kind, comm, user = columns
    floats = [column.astype(np.float64) for column in (arrival, duration, comm)]
    return Jobs(*floats[:2], instances, gpu, cpu, kind, floats[2], user, ids[order])


def given_jobs(jobs: Jobs) -> Workload:
    """A workload of exactly these jobs."""
    return Workload("given", "written by hand", lambda *_: jobs, 1.0, len(jobs.job_id))


def play(
    policy: str, settings: GpuSchedulingSettings, episode: Episode, *, record: bool = True
) -> EpisodeResult:
    state = runs.run_baseline(settings, episode, BASELINES[policy], record=record)
    return runs.episode_result(state, *episode[:2], policy, 0)


@st.composite
def episodes(draw: st.DrawFn, *, disturbed: bool) -> tuple[GpuSchedulingSettings, Episode]:
    """A few jobs on a few machines; every job fits the empty cluster."""
    group = st.builds(
        MachineGroup,
        count=st.integers(1, 3),
        gpus=st.integers(1, 4),
        gpu=st.sampled_from(TYPES) if disturbed else st.just("V100"),
        cpus=st.integers(2, 8),
        machines_per_rack=st.integers(1, 2),
    )
    settings = GpuSchedulingSettings(
        machines=tuple(draw(st.lists(group, min_size=1, max_size=3))),
        interference=disturbed,
        stragglers=draw(st.sampled_from((0.0, 0.3))) if disturbed else 0.0,
        backfill=draw(st.booleans()),
        replan_s=draw(st.sampled_from((1.0, 7.5))),
        restart_s=draw(st.sampled_from((0.0, 2.5, 60.0))),
    )
    cluster = build_cluster(settings)
    rows: list[Row] = []
    for _ in range(draw(st.integers(1, 14))):
        gpu = draw(st.sampled_from((10, 30, 50, 60, 100, 150, 200)))
        cpu = draw(st.sampled_from((0, 50, 100, 200)))
        kind = ANY_TYPE
        if draw(st.integers(0, 3)) == 0:
            kind = int(draw(st.sampled_from(cluster.gpu_type.tolist())))
        here = (cluster.gpu_type == kind) | (kind == ANY_TYPE)
        each = np.minimum(cluster.gpu_capacity // gpu, cluster.cpu_capacity // max(cpu, 1))
        if not each[here].any():
            gpu, cpu, kind, each, here = 10, 0, ANY_TYPE, cluster.gpu_capacity // 10, each >= 0
        arrival, duration = draw(st.integers(0, 30)), draw(st.integers(1, 20))
        instances = draw(st.integers(1, min(int(each[here].sum()), 8)))
        comm, user = draw(st.sampled_from((0.0, 0.2, 0.7))), draw(st.integers(0, 2))
        rows.append((arrival, duration, instances, gpu, cpu, kind, comm, user))
    return settings, Episode(cluster, jobs_of(rows), draw(st.integers(0, (1 << 62) - 1)))
