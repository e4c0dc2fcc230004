"""Small episodes for tests, drawn or written by hand, and policies that decide as the agents do."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import HealthCheck
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling import episode as runs
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.actions import ORDERING, PLACEMENT, sample_legal_action
from loadmaster.envs.gpu_scheduling.baselines import BASELINES
from loadmaster.envs.gpu_scheduling.cluster import build_cluster
from loadmaster.envs.gpu_scheduling.decision_state import SHOWN
from loadmaster.envs.gpu_scheduling.env import GpuSchedulingEnv
from loadmaster.envs.gpu_scheduling.episode import Episode, EpisodeResult
from loadmaster.envs.gpu_scheduling.episode_runner import EpisodeRunner
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, Jobs, Workload
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings, MachineGroup
from tests.envs.gpu_scheduling.reference import place

Actions = dict[str, NDArray[np.float32]]
Policy = Callable[[EpisodeRunner], Actions]


def machines(
    count: int, gpus: int, gpu: str = "V100", cpus: int = 0, per_rack: int = 4
) -> MachineGroup:
    """Machines with eight cores per GPU unless `cpus` is given."""
    return MachineGroup(
        count=count, gpus=gpus, gpu=gpu, cpus=cpus or 8 * gpus, machines_per_rack=per_rack
    )


TOY: dict[str, Any] = {
    "workload": "toy",
    "arrivals": "trace",
    "machines": (machines(1, 4),),
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
        gpu=st.sampled_from(("T4", "P100", "V100")) if disturbed else st.just("V100"),
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


# Policies.


def env_with(*rows: Row, **values: Any) -> GpuSchedulingEnv:
    """An environment of exactly these jobs, after its reset; settings as in TOY."""
    with warnings.catch_warnings(action="ignore"):  # about oversized jobs
        env = GpuSchedulingEnv(given_jobs(jobs_of(rows)), **{**TOY, "workload": "-", **values})
        env.reset(seed=0)
    return env


def running(runner: EpisodeRunner) -> set[int]:
    return set(np.flatnonzero(runner.state.jobs[:-1, cols.ROWS_USED] > 0).tolist())


def shown(runner: EpisodeRunner) -> list[int]:
    jobs: list[int] = runner.decision_state.shown[: runner.decision_state.counts[SHOWN]].tolist()
    return jobs


def finish(env: GpuSchedulingEnv, policy: Policy) -> list[float]:
    """Run the episode to its end; return the rewards."""
    rewards = []
    while env.agents:
        _, reward, _, _, _ = env.step(policy(env.runner))
        rewards.append(reward[ORDERING])
    return rewards


def at_random(seed: int) -> Policy:
    rng = np.random.default_rng(seed)
    return lambda runner: sample_legal_action(runner.view._asdict(), rng)


def first_come_first_fit(runner: EpisodeRunner) -> Actions:
    rows, machines = runner.view.held.shape
    return {
        ORDERING: -np.arange(rows, dtype=np.float32),
        PLACEMENT: np.tile(-np.arange(machines, dtype=np.float32), (rows, 1)),
    }


def shortest_consolidated(runner: EpisodeRunner) -> Actions:
    """Shortest job first on as few machines and racks as possible."""
    cluster, jobs, _ = runner.episode
    free, rows = runner.state.free.copy(), shown(runner)
    actions = first_come_first_fit(runner)
    actions[ORDERING][: len(rows)] = -jobs.duration_s[rows]
    for row in np.lexsort((jobs.job_id[rows], jobs.duration_s[rows])):
        job = rows[row]
        chosen = place(cluster, jobs, free, job, "consolidate")
        if not chosen and runner.state.setup[cols.BACKFILL] == 0:
            break
        for rank, (machine, count) in enumerate(chosen):
            free[machine] -= count * np.array([jobs.gpu[job], jobs.cpu[job]])
            actions[PLACEMENT][row, machine] = len(free) - rank
    return actions


def running_first(runner: EpisodeRunner, bonus: float = 1000) -> Actions:
    """Rank running jobs before pending ones."""
    actions, rows = first_come_first_fit(runner), shown(runner)
    actions[ORDERING][: len(rows)] += bonus * np.isin(rows, list(running(runner)))
    return actions


def pending_first(runner: EpisodeRunner) -> Actions:
    return running_first(runner, bonus=-1000)


def shortest_remaining(runner: EpisodeRunner) -> Actions:
    """Shortest remaining time first, by rank: float32 cannot separate close values."""
    actions, rows, state = first_come_first_fit(runner), shown(runner), runner.state
    since = state.times[cols.NOW] - state.progress[rows, cols.SINCE_S]
    left = state.progress[rows, cols.LEFT_S] - since * state.progress[rows, cols.RATE]
    actions[ORDERING][np.argsort(left)] = -np.arange(len(rows))
    return actions
