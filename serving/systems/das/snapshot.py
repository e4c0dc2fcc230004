"""Conversion between states and the environment's tables, so that both are decided by one code."""

from collections.abc import Mapping, Sequence
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling import decision_state as decisions
from loadmaster.envs.gpu_scheduling.baselines import DRF, PREDICTED, SHOCKWAVE
from loadmaster.envs.gpu_scheduling.jobs import WHOLE, Jobs
from loadmaster.envs.gpu_scheduling.keys import LEAST_RESTARTS
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.snapshot import ClusterSnapshot, state_from_snapshot
from loadmaster.envs.gpu_scheduling.state import (
    FINISHED_S,
    NEVER,
    NEXT_JOB,
    NEXT_REPLAN,
    NOW,
    PLACED_S,
    RATE,
    RESTART_S,
    ROWS_USED,
    SimState,
    new_state,
)
from loadmaster.models.das.decision import ClusterTables, Decision, Placement
from loadmaster.serving.systems.das import parsed_state as cols
from loadmaster.serving.systems.das.records import Job, Rank
from loadmaster.serving.systems.das.schema import DasDecision, DasState

# Ordering rules whose decisions depend on earlier keys, which do not contain the time of day.
RANKED = (PREDICTED, SHOCKWAVE)
# The phase of an event follows from the one before it.
_PREVIOUS_PHASE = {
    "event": decisions.NOT_STARTED,
    "placing": decisions.NOT_STARTED,
    "reconsidering": decisions.PLACING,
    "placing again": decisions.RECONSIDERING,
}


def tables_of(
    state: DasState,
    settings: GpuSchedulingSettings,
    ordering: int,
    parameters: Sequence[float] = (),
) -> ClusterTables:
    """The state in the environment's tables, for a scheduler with that ordering rule.

    Jobs are numbered in order of arrival. `settings` give the sizes of the observation, whether the
    policy preempts, and the slowdown model; `parameters` are those of a rule that has any. With
    `settings.guide` the decision corrects the rule, which replans unless only placing is asked for.
    """
    parsed = state.parsed
    cluster, own = parsed.cluster_index.cluster, parsed.cluster_index.own
    if own:
        settings = settings.model_copy(update={"gpu_types": own})
    order = (-parsed.numbers[cols.AGE_S]).argsort(kind="stable")
    columns = parsed.numbers[:, order]
    arrivals = [state.jobs[place] for place in order.tolist()]
    running = columns[cols.PLACES].nonzero()[0]
    # In the order of placement.
    running = running[(-columns[cols.RUNNING_S, running]).argsort(kind="stable")]
    allocated = parsed.capacity.allocated
    placed = {job: allocated[arrivals[job].id] for job in running.tolist()}
    jobs = _jobs_of(columns)
    sim_state = new_state(settings, cluster, jobs, seed=0, by_user=ordering == DRF)
    decision_state = decisions.new_decision_state(settings, cluster, jobs)
    ranks = state.ranks if ordering in RANKED else {}
    snapshot = _snapshot(state, arrivals, columns, running, placed, ranks)
    sim_state.rule[: len(parameters)] = parameters
    _load_users(state, sim_state)
    state_from_snapshot(sim_state, cluster, jobs, decision_state, snapshot, ordering)
    _load_history(state, decision_state)
    decision_state.counts[decisions.PHASE] = _PREVIOUS_PHASE[state.ask]
    if settings.guide is not None:
        decision_state.counts[decisions.GUIDE] = ordering
        replans = state.ask in ("event", "reconsidering")
        sim_state.times[NEXT_REPLAN] = 0.0 if replans else NEVER
    return ClusterTables(
        *(sim_state, cluster, jobs, decision_state, placed),
        job_name=lambda job: arrivals[job].id,
        machine_name=lambda machine: state.machines[machine].name,
    )


def to_schema(tables: ClusterTables, decision: Decision, ordering: int) -> DasDecision:
    """The decision by names, and the ranks under that ordering rule."""
    ranks = ranks_of(tables.state, tables.decision_state, ordering)
    # Validated in one go: building records one by one costs several times as much.
    return DasDecision.model_validate(
        {
            "start": [
                {
                    "job": tables.job_name(job),
                    "placements": [
                        {"machine": tables.machine_name(machine), "instances": count}
                        for machine, count in where.items()
                    ],
                }
                for job, where in decision.start
            ],
            "stop": [tables.job_name(job) for job in decision.stop],
            "wait": decision.wait,
            "ranks": {tables.job_name(job): rank for job, rank in ranks.items()},
        }
    )


def ranks_of(
    state: SimState, decision_state: decisions.DecisionState, ordering: int
) -> dict[int, dict[str, float | None]]:
    """Keys and corrections that the next decision depends on, by job.

    Those of jobs that wait or have not progressed; of all if there are more than are observed.
    """
    if ordering not in RANKED:
        return {}
    arrived, counts = state.clock[NEXT_JOB], decision_state.counts
    progress = state.progress[:arrived]
    present = np.isnan(progress[:, FINISHED_S])
    done_s = (state.times[NOW] - progress[:, PLACED_S]) * progress[:, RATE]
    has_progressed = done_s >= LEAST_RESTARTS * state.times[RESTART_S]
    if present.sum() <= len(decision_state.shown):
        present &= (state.jobs[:arrived, ROWS_USED] == 0) | ~has_progressed
    keyed = counts[decisions.KEYED] if counts[decisions.GUIDE] > 0 else 0
    return {
        job: {
            "key": float(state.key[job]),
            "correction": float(decision_state.start_priority[job]) if job < keyed else None,
        }
        for job in present.nonzero()[0].tolist()
    }


def _jobs_of(columns: NDArray[np.float64]) -> Jobs:
    columns[cols.GPUS :] = np.rint(columns[cols.GPUS :] * WHOLE)  # as in `percent`
    instances, gpu_type, user, gpu, cpu = columns[cols.INSTANCES :].astype(np.int64)
    return Jobs(
        arrival_s=-columns[cols.AGE_S],
        duration_s=columns[cols.DURATION_S],
        instances=instances,
        gpu=gpu,
        cpu=cpu,
        gpu_type=gpu_type,
        comm=columns[cols.COMM],
        user=user,
        job_id=np.arange(columns.shape[1]),
    )


def _snapshot(
    state: DasState,
    arrivals: list[Job],
    columns: NDArray[np.float64],
    running: NDArray[np.int64],
    placed: dict[int, Placement],
    ranks: Mapping[str, Rank],
) -> ClusterSnapshot:
    places = [
        (job, machine, count) for job, where in placed.items() for machine, count in where.items()
    ]
    if state.running_order:
        turn = {name: place for place, name in enumerate(state.running_order)}
        turns = [turn.get(arrivals[job].id, len(turn)) for job in running.tolist()]
        running = running[np.array(turns).argsort(kind="stable")]
    nan = float("nan")
    kept = [nan if one.kept_speed is None else one.kept_speed for one in state.machines]
    key, correction = np.full((2, len(arrivals)), nan)
    if ranks:
        for job, one in enumerate(arrivals):
            if (rank := ranks.get(one.id)) is not None:
                key[job] = rank.key
                correction[job] = nan if rank.correction is None else rank.correction
    return ClusterSnapshot(
        ran_s=columns[cols.RAN_S],
        running_s=columns[cols.RUNNING_S],
        speed=columns[cols.SPEED],
        places=np.fromiter(chain.from_iterable(places), np.int64, 3 * len(places)).reshape(-1, 3),
        running=running,
        kept=np.array(kept),
        key=key,
        correction=correction,
    )


def _load_users(state: DasState, sim_state: SimState) -> None:
    """Finished jobs of each user, and of all."""
    users, history = state.parsed.users, sim_state.user_history
    for name, finished in state.users.items():
        if name in users:
            history[users[name]] = finished.jobs, finished.mean_log_minutes
    counts = [finished.jobs for finished in state.users.values()]
    if state.all_users is not None:
        history[-1] = state.all_users.jobs, state.all_users.mean_log_minutes
    elif sum(counts) > 0:
        means = [finished.mean_log_minutes for finished in state.users.values()]
        history[-1] = sum(counts), np.average(means, weights=counts)


def _load_history(state: DasState, decision_state: decisions.DecisionState) -> None:
    """Finished jobs of users, and speeds at earlier decisions; unknown machines are left out."""
    users, place_of = state.parsed.users, state.parsed.cluster_index.place_of
    for name, finished in state.users.items():
        if name in users:
            decision_state.users[users[name]] = finished.jobs, finished.mean_log_minutes
    notes, machines = state.history[: len(decision_state.history_s)], len(place_of)
    decision_state.counts[decisions.HISTORY_ROWS] = len(notes)
    decision_state.history_s[: len(notes)] = [-note.age_s for note in notes]
    lengths = [len(note.speeds) for note in notes]
    count = sum(lengths)
    names = chain.from_iterable(note.speeds for note in notes)
    speeds = chain.from_iterable(note.speeds.values() for note in notes)
    place = np.fromiter(map(place_of.get, names, repeat(-1)), np.int64, count)
    speed = np.fromiter(speeds, np.float32, count)
    cell = place + np.arange(0, len(notes) * machines, machines).repeat(lengths)
    is_known = place >= 0
    decision_state.history_speed.reshape(-1)[cell[is_known]] = speed[is_known]
    decision_state.noted.reshape(-1)[cell[is_known]] = True
