"""Moments of simulated episodes as states: what an operator of that cluster would send."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np

from loadmaster.envs.gpu_scheduling import decision_state as on
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import WHOLE, Cluster, gpu_types
from loadmaster.envs.gpu_scheduling.decision_state import DecisionState
from loadmaster.envs.gpu_scheduling.episode_runner import EpisodeRunner
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, Jobs
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.state import SimState
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.serving.systems.das.schema import (
    Ask,
    DasState,
    Finished,
    Job,
    Machine,
    Note,
    Placement,
)

# An episode, its seed, and how many jobs are in the system at the moment it shows. On Small nearly
# half of them wait; on Large one does, as is usual there.
_EXAMPLES: dict[str, tuple[GpuSchedulingSettings, int, int]] = {
    "small": (GpuSchedulingSettings(), 0, 20),
    "large": (GpuSchedulingSettings(cluster="large"), 1, 150),
}


def state_of(
    settings: GpuSchedulingSettings,
    cluster: Cluster,
    jobs: Jobs,
    state: SimState,
    desk: DecisionState | None,
    ask: Ask = "event",
) -> DasState:
    """What is known at this moment; without a desk, nothing of what was before."""
    names = [machine_name(place) for place in range(len(cluster.rack))]
    here = [
        int(job)
        for job in range(state.clock[at.NEXT_JOB])
        if np.isnan(state.progress[job, at.FINISHED_S])
    ]
    known = settings.durations == "known"
    told = [_job_of(settings, jobs, state, names, job, known) for job in here]
    return DasState(
        machines=tuple(_machines_of(settings, cluster, state, names)),
        jobs=tuple(told),
        users={} if desk is None else _users_of(jobs, desk, here),
        history=() if desk is None else tuple(_notes_of(state, desk, names, ask)),
        running_order=() if desk is None else _listed(jobs, desk, len(here)),
        backfill=settings.backfill,
        ask=ask,
    )


def machine_name(place: int) -> str:
    return f"machine-{place + 1}"


def _machines_of(
    settings: GpuSchedulingSettings, cluster: Cluster, state: SimState, names: list[str]
) -> Iterator[Machine]:
    kinds = gpu_types(settings)
    for place, name in enumerate(names):
        kind = kinds[cluster.gpu_type[place]]
        # Where jobs have come or gone, speeds are still those of before.
        changed = state.machines[place, at.IS_CHANGED] == 1
        yield Machine(
            name=name,
            gpus=int(cluster.gpu_capacity[place]) // WHOLE,
            gpu=kind.name,
            cpus=int(cluster.cpu_capacity[place]) / WHOLE,
            rack=f"rack-{cluster.rack[place] + 1}",
            kept_speed=float(state.factors[place, at.COLOCATION]) if changed else None,
        )


def _job_of(
    settings: GpuSchedulingSettings,
    jobs: Jobs,
    state: SimState,
    names: list[str],
    job: int,
    known: bool,
) -> Job:
    now, progress = state.times[at.NOW], state.progress[job]
    first, used = state.jobs[job, [at.FIRST_ROW, at.ROWS_USED]].tolist()
    kind = int(jobs.gpu_type[job])
    return Job(
        id=str(jobs.job_id[job]),
        user=f"user-{jobs.user[job]}",
        instances=int(jobs.instances[job]),
        gpus=int(jobs.gpu[job]) / WHOLE,
        cpus=int(jobs.cpu[job]) / WHOLE,
        gpu_type=None if kind == ANY_TYPE else gpu_types(settings)[kind].name,
        communication=float(jobs.comm[job]),
        age_s=float(now - jobs.arrival_s[job]),
        ran_s=float(progress[at.RUN_S]),
        duration_s=float(jobs.duration_s[job]) if known else None,
        placements=tuple(
            Placement(machine=names[machine], instances=count)
            for machine, count in state.rows[
                first : first + used, at.MACHINE : at.COUNT + 1
            ].tolist()
        ),
        running_s=float(now - progress[at.PLACED_S]) if used else 0.0,
        speed=float(progress[at.RATE]) if used else None,
    )


def _users_of(jobs: Jobs, desk: DecisionState, here: list[int]) -> dict[str, Finished]:
    return {
        f"user-{user}": Finished(
            jobs=int(desk.users[user, on.JOBS_DONE]),
            mean_log_minutes=float(desk.users[user, on.LOG_RUN]),
        )
        for user in sorted({int(jobs.user[job]) for job in here})
        if desk.users[user, on.JOBS_DONE] > 0
    }


def _notes_of(state: SimState, desk: DecisionState, names: list[str], ask: Ask) -> Iterator[Note]:
    """Of this event itself only where it has begun: else the speeds of now will be noted."""
    for row in range(desk.counts[on.NOTED]):
        age_s = float(state.times[at.NOW] - desk.noted_s[row])
        if age_s > 0 or ask in ("reconsidering", "placing again"):
            seen = np.flatnonzero(desk.noted[row]).tolist()
            yield Note(
                age_s=age_s,
                speeds={names[place]: float(desk.noted_speed[row, place]) for place in seen},
            )


def _listed(jobs: Jobs, desk: DecisionState, here: int) -> tuple[str, ...]:
    """Told only where not everybody is looked at."""
    if here <= len(desk.shown):
        return ()
    running = desk.running[: desk.counts[on.LISTED]]
    return tuple(str(job) for job in jobs.job_id[running])


@cache
def example(name: str) -> DasState:
    """A moment of an episode in which jobs start as they come, on whatever machine is first."""
    settings, seed, crowd = _EXAMPLES[name]
    sitting = EpisodeRunner(settings, seed, load_workload(settings))
    cluster, jobs, _ = sitting.episode
    shape = settings.max_queue, len(cluster.rack)
    first_come = -np.arange(settings.max_queue, dtype=np.float32)
    while sitting.advance_to_decision():
        if sitting.state.clock[[at.QUEUED, at.RUNNING]].sum() >= crowd:
            break
        sitting.decide(first_come, np.zeros(shape, np.float32))
    return state_of(settings, cluster, jobs, sitting.state, sitting.desk)


class Examples(Mapping[str, DasState]):
    """Made when somebody looks at them."""

    def __getitem__(self, name: str) -> DasState:
        if name not in _EXAMPLES:
            raise KeyError(name)
        return example(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_EXAMPLES)

    def __len__(self) -> int:
        return len(_EXAMPLES)
