"""Example states, and the conversion of simulated episodes to states."""

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

from loadmaster.envs.gpu_scheduling import decision_state as decisions
from loadmaster.envs.gpu_scheduling import state as columns
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.episode_runner import EpisodeRunner
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, WHOLE, Jobs
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.state import SimState
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.serving.systems.das import records
from loadmaster.serving.systems.das.records import Ask
from loadmaster.serving.systems.das.schema import DasState
from loadmaster.serving.systems.das.snapshot import ranks_of


def state_of(
    settings: GpuSchedulingSettings,
    cluster: Cluster,
    jobs: Jobs,
    state: SimState,
    decision_state: decisions.DecisionState | None,
    ask: Ask = "event",
) -> DasState:
    """State of a simulated cluster as a client sends it; no history without a decision state."""
    names = [machine_name(place) for place in range(len(cluster.rack))]
    finished_s = state.progress[: state.clock[columns.NEXT_JOB], columns.FINISHED_S]
    present = np.flatnonzero(np.isnan(finished_s)).tolist()
    past: dict[str, Any] = {}
    if decision_state is not None:
        past = _past_of(jobs, state, decision_state, present, names, ask)
    return DasState(
        machines=tuple(_machines_of(settings, cluster, state, names)),
        jobs=tuple(_job_of(settings, jobs, state, names, job) for job in present),
        backfill=settings.backfill,
        ask=ask,
        **past,
    )


def machine_name(place: int) -> str:
    return f"machine-{place + 1}"


def _machines_of(
    settings: GpuSchedulingSettings, cluster: Cluster, state: SimState, names: list[str]
) -> Iterator[records.Machine]:
    kinds = tuple(settings.known_gpu_types)
    for place, name in enumerate(names):
        # Speeds are still those from before jobs were placed or removed.
        changed = state.machines[place, columns.IS_CHANGED] == 1
        yield records.Machine(
            name=name,
            gpus=int(cluster.gpu_capacity[place]) // WHOLE,
            gpu=kinds[cluster.gpu_type[place]],
            cpus=int(cluster.cpu_capacity[place]) / WHOLE,
            rack=f"rack-{cluster.rack[place] + 1}",
            kept_speed=float(state.factors[place, columns.COLOCATION]) if changed else None,
        )


def _job_of(
    settings: GpuSchedulingSettings, jobs: Jobs, state: SimState, names: list[str], job: int
) -> records.Job:
    now, progress = state.times[columns.NOW], state.progress[job]
    first, used = state.jobs[job, [columns.FIRST_ROW, columns.ROWS_USED]].tolist()
    rows = state.rows[first : first + used, columns.MACHINE : columns.COUNT + 1].tolist()
    kind = int(jobs.gpu_type[job])
    return records.Job(
        id=str(jobs.job_id[job]),
        user=f"user-{jobs.user[job]}",
        instances=int(jobs.instances[job]),
        gpus=int(jobs.gpu[job]) / WHOLE,
        cpus=int(jobs.cpu[job]) / WHOLE,
        gpu_type=None if kind == ANY_TYPE else tuple(settings.known_gpu_types)[kind],
        communication=float(jobs.comm[job]),
        age_s=float(now - jobs.arrival_s[job]),
        ran_s=float(progress[columns.RUN_S]),
        duration_s=float(jobs.duration_s[job]) if settings.durations == "known" else None,
        placements=tuple(records.Placement(machine=names[m], instances=n) for m, n in rows),
        running_s=float(now - progress[columns.PLACED_S]) if used else 0.0,
        speed=float(progress[columns.RATE]) if used else None,
    )


def _past_of(
    jobs: Jobs,
    state: SimState,
    decision_state: decisions.DecisionState,
    present: list[int],
    names: list[str],
    ask: Ask,
) -> dict[str, Any]:
    """Finished jobs, ranks, past speeds, and the order of running jobs if some are not observed.

    Speeds of this event are included only if an earlier phase of it has noted them.
    """
    users, history = {}, []
    done, log_run = state.user_history[-1, : columns.MEASURED_LOG].tolist()
    all_users = records.Finished(jobs=int(done), mean_log_minutes=log_run)
    ranks = ranks_of(state, decision_state, int(decision_state.counts[decisions.GUIDE]))
    for user in sorted(set(jobs.user[present].tolist())):
        done, log_run = decision_state.users[user].tolist()
        if done > 0:
            users[f"user-{user}"] = records.Finished(jobs=int(done), mean_log_minutes=log_run)
    for row in range(decision_state.counts[decisions.HISTORY_ROWS]):
        age_s = float(state.times[columns.NOW] - decision_state.history_s[row])
        if age_s > 0 or ask in ("reconsidering", "placing again"):
            speeds, seen = decision_state.history_speed[row], decision_state.noted[row].nonzero()[0]
            by_name = {names[place]: float(speeds[place]) for place in seen}
            history.append(records.Note(age_s=age_s, speeds=by_name))
    running = decision_state.running[: decision_state.counts[decisions.RUNNING_JOBS]]
    order = map(str, jobs.job_id[running]) if len(present) > len(decision_state.shown) else ()
    return {
        "users": users,
        "all_users": all_users,
        "ranks": {
            str(jobs.job_id[job]): records.Rank.model_validate(rank) for job, rank in ranks.items()
        },
        "history": tuple(history),
        "running_order": tuple(order),
    }


@cache
def examples() -> Mapping[str, DasState]:
    """On Small nearly half of the jobs wait; on Large one does, as is usual there."""
    small, large = GpuSchedulingSettings(), GpuSchedulingSettings(cluster="large")
    return MappingProxyType({"small": _example(small, 0, 20), "large": _example(large, 1, 150)})


def _example(settings: GpuSchedulingSettings, seed: int, count: int) -> DasState:
    """The first state with `count` jobs under first-come-first-served and first-fit."""
    runner = EpisodeRunner(settings, seed, load_workload(settings))
    cluster, jobs, _ = runner.episode
    first_come = -np.arange(settings.max_queue, dtype=np.float32)
    first_fit = np.zeros((settings.max_queue, len(cluster.rack)), np.float32)
    while runner.advance_to_decision():
        if runner.state.clock[[columns.QUEUED, columns.RUNNING]].sum() >= count:
            break
        runner.decide(first_come, first_fit)
    return state_of(settings, cluster, jobs, runner.state, runner.decision_state)
