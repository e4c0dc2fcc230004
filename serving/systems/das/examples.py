"""Example states, and the conversion of simulated episodes to states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np

from loadmaster.envs.gpu_scheduling import state as columns
from loadmaster.envs.gpu_scheduling.cluster import Cluster, gpu_types
from loadmaster.envs.gpu_scheduling.decision_state import (
    HISTORY_ROWS,
    JOBS_DONE,
    LOG_RUN,
    RUNNING_JOBS,
    DecisionState,
)
from loadmaster.envs.gpu_scheduling.episode_runner import EpisodeRunner
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, WHOLE, Jobs
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.state import SimState
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.serving.systems.das.records import Finished, Job, Machine, Note, Placement
from loadmaster.serving.systems.das.schema import Ask, DasState

# Settings and seed of an episode, and the number of jobs in the system at which it is captured. On
# Small nearly half of them wait; on Large one does, as is usual there.
_EXAMPLES: dict[str, tuple[GpuSchedulingSettings, int, int]] = {
    "small": (GpuSchedulingSettings(), 0, 20),
    "large": (GpuSchedulingSettings(cluster="large"), 1, 150),
}


def state_of(
    settings: GpuSchedulingSettings,
    cluster: Cluster,
    jobs: Jobs,
    state: SimState,
    decision_state: DecisionState | None,
    ask: Ask = "event",
) -> DasState:
    """State of a simulated cluster as a client sends it; no history without a decision state."""
    names = [machine_name(place) for place in range(len(cluster.rack))]
    present = [
        int(job)
        for job in range(state.clock[columns.NEXT_JOB])
        if np.isnan(state.progress[job, columns.FINISHED_S])
    ]
    known = settings.durations == "known"
    records = [_job_of(settings, jobs, state, names, job, known) for job in present]
    return DasState(
        machines=tuple(_machines_of(settings, cluster, state, names)),
        jobs=tuple(records),
        users={} if decision_state is None else _users_of(jobs, decision_state, present),
        history=()
        if decision_state is None
        else tuple(_notes_of(state, decision_state, names, ask)),
        running_order=()
        if decision_state is None
        else _running_order(jobs, decision_state, len(present)),
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
        # Speeds are still those from before jobs were placed or removed.
        changed = state.machines[place, columns.IS_CHANGED] == 1
        yield Machine(
            name=name,
            gpus=int(cluster.gpu_capacity[place]) // WHOLE,
            gpu=kind.name,
            cpus=int(cluster.cpu_capacity[place]) / WHOLE,
            rack=f"rack-{cluster.rack[place] + 1}",
            kept_speed=float(state.factors[place, columns.COLOCATION]) if changed else None,
        )


def _job_of(
    settings: GpuSchedulingSettings,
    jobs: Jobs,
    state: SimState,
    names: list[str],
    job: int,
    known: bool,
) -> Job:
    now, progress = state.times[columns.NOW], state.progress[job]
    first, used = state.jobs[job, [columns.FIRST_ROW, columns.ROWS_USED]].tolist()
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
        ran_s=float(progress[columns.RUN_S]),
        duration_s=float(jobs.duration_s[job]) if known else None,
        placements=tuple(
            Placement(machine=names[machine], instances=count)
            for machine, count in state.rows[
                first : first + used, columns.MACHINE : columns.COUNT + 1
            ].tolist()
        ),
        running_s=float(now - progress[columns.PLACED_S]) if used else 0.0,
        speed=float(progress[columns.RATE]) if used else None,
    )


def _users_of(jobs: Jobs, decision_state: DecisionState, present: list[int]) -> dict[str, Finished]:
    return {
        f"user-{user}": Finished(
            jobs=int(decision_state.users[user, JOBS_DONE]),
            mean_log_minutes=float(decision_state.users[user, LOG_RUN]),
        )
        for user in sorted({int(jobs.user[job]) for job in present})
        if decision_state.users[user, JOBS_DONE] > 0
    }


def _notes_of(
    state: SimState, decision_state: DecisionState, names: list[str], ask: Ask
) -> Iterator[Note]:
    """Past speeds; those of this event only if an earlier phase of it has noted them."""
    for row in range(decision_state.counts[HISTORY_ROWS]):
        age_s = float(state.times[columns.NOW] - decision_state.history_s[row])
        if age_s > 0 or ask in ("reconsidering", "placing again"):
            seen = np.flatnonzero(decision_state.noted[row]).tolist()
            yield Note(
                age_s=age_s,
                speeds={
                    names[place]: float(decision_state.history_speed[row, place]) for place in seen
                },
            )


def _running_order(jobs: Jobs, decision_state: DecisionState, present: int) -> tuple[str, ...]:
    """Only needed if not all jobs are observed."""
    if present <= len(decision_state.shown):
        return ()
    running = decision_state.running[: decision_state.counts[RUNNING_JOBS]]
    return tuple(str(job) for job in jobs.job_id[running])


@cache
def example(name: str) -> DasState:
    """A state of an episode under first-come-first-served on the first machine that fits."""
    settings, seed, count = _EXAMPLES[name]
    runner = EpisodeRunner(settings, seed, load_workload(settings))
    cluster, jobs, _ = runner.episode
    shape = settings.max_queue, len(cluster.rack)
    first_come = -np.arange(settings.max_queue, dtype=np.float32)
    while runner.advance_to_decision():
        if runner.state.clock[[columns.QUEUED, columns.RUNNING]].sum() >= count:
            break
        runner.decide(first_come, np.zeros(shape, np.float32))
    return state_of(settings, cluster, jobs, runner.state, runner.decision_state)


class Examples(Mapping[str, DasState]):
    """The example states by name, built on first access."""

    def __getitem__(self, name: str) -> DasState:
        if name not in _EXAMPLES:
            raise KeyError(name)
        return example(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_EXAMPLES)

    def __len__(self) -> int:
        return len(_EXAMPLES)
