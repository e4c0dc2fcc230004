"""For tests: small episodes of every shape, drawn by hypothesis or written by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from loadmaster.envs.gpu_scheduling.baselines import BASELINES
from loadmaster.envs.gpu_scheduling.cluster import MachineGroup, build_cluster
from loadmaster.envs.gpu_scheduling.episode import Episode, EpisodeResult
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, Jobs
from loadmaster.envs.gpu_scheduling.rollout import episode_result, run_baseline
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings

TYPES = ("T4", "P100", "V100")

# arrival, duration, instances, GPU and CPU in percent, type, communication, user
Row = tuple[float, float, int, int, int, int, float, int]


def jobs_of(rows: Sequence[Row]) -> Jobs:
    """Rows as an episode's jobs, sorted by arrival; ids run against the order of equal arrivals."""
    ids = np.arange(len(rows))[::-1]
    order = np.lexsort((ids, [row[0] for row in rows]))
    columns = [np.array([rows[place][i] for place in order]) for i in range(8)]
    arrival, duration, instances, gpu, cpu, kind, comm, user = columns
    return Jobs(
        arrival.astype(np.float64),
        duration.astype(np.float64),
        instances,
        gpu,
        cpu,
        kind,
        comm.astype(np.float64),
        user,
        ids[order],
    )


def play(
    policy: str, settings: GpuSchedulingSettings, episode: Episode, *, record: bool = True
) -> EpisodeResult:
    state = run_baseline(settings, *episode[:2], BASELINES[policy], episode.luck, record=record)
    return episode_result(state, episode.cluster, episode.jobs, policy, 0)


@st.composite
def episodes(draw: st.DrawFn, *, disturbed: bool) -> tuple[GpuSchedulingSettings, Episode]:
    """A few jobs on a few machines; every job fits the empty cluster."""
    groups = draw(
        st.lists(
            st.builds(
                MachineGroup,
                count=st.integers(1, 3),
                gpus=st.integers(1, 4),
                gpu=st.sampled_from(TYPES) if disturbed else st.just("V100"),
                cpus=st.integers(2, 8),
                machines_per_rack=st.integers(1, 2),
            ),
            min_size=1,
            max_size=3,
        )
    )
    settings = GpuSchedulingSettings(
        machines=tuple(groups),
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
        rows.append(
            (
                draw(st.integers(0, 30)),
                draw(st.integers(1, 20)),
                draw(st.integers(1, min(int(each[here].sum()), 8))),
                gpu,
                cpu,
                kind,
                draw(st.sampled_from((0.0, 0.2, 0.7))),
                draw(st.integers(0, 2)),
            )
        )
    return settings, Episode(cluster, jobs_of(rows), draw(st.integers(0, (1 << 62) - 1)))
