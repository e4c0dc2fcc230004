"""For tests: what holds in every schedule and at every decision, recounted the slow way."""

from __future__ import annotations

import numpy as np

from loadmaster.envs.dag_scheduling import observation as obs
from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.episode import EpisodeResult
from loadmaster.envs.dag_scheduling.jobs import Workload
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.state import NEVER, NONE
from tests.envs.dag_scheduling.cluster import Cluster


def check_schedule(
    result: EpisodeResult, workload: Workload, settings: DagSchedulingSettings
) -> None:
    """A finished episode's trace: nothing lost, nothing twice, nothing too early."""
    bank, trace = workload.bank, result.trace
    assert trace is not None
    moving_ms = round(settings.moving_delay_s * 1000)
    arrival_ms = np.rint(result.arrival_s * 1000).astype(np.int64)
    assert (np.diff(trace.start_ms) >= 0).all(), "time went back"
    assert (trace.end_ms >= trace.start_ms).all()
    assert (trace.start_ms >= arrival_ms[trace.job]).all(), "somebody knew of a job beforehand"

    # Every task of every job ran exactly once.
    task = trace.moving == 0
    profile = bank.first_stage[result.template[trace.job]] + trace.stage  # (rows,)
    runs = np.zeros((len(result.template), workload.stages_max), np.int64)
    np.add.at(runs, (trace.job[task], trace.stage[task]), 1)
    stage_end = np.zeros_like(runs)
    np.maximum.at(stage_end, (trace.job[task], trace.stage[task]), trace.end_ms[task])
    stage_start = np.full_like(runs, NEVER)
    np.minimum.at(stage_start, (trace.job[task], trace.stage[task]), trace.start_ms[task])
    for job, template in enumerate(result.template):
        first, end = bank.first_stage[template], bank.first_stage[template + 1]
        assert runs[job, : end - first].tolist() == bank.tasks[first:end].tolist()
        assert not runs[job, end - first :].any()
        # No stage started before all its parents' tasks had ended.
        for stage in range(end - first):
            edges = slice(bank.parent_first[first + stage], bank.parent_first[first + stage + 1])
            for parent in bank.parent[edges]:
                assert stage_start[job, stage] >= stage_end[job, parent]
    assert result.tasks == task.sum()
    completed_ms = np.rint(result.completion_s * 1000)
    assert (completed_ms == stage_end.max(axis=1)).all()
    assert np.allclose(result.jct_s, (stage_end.max(axis=1) - arrival_ms) / 1000)

    # Nobody is in two places, or in another job without having moved there.
    rows = np.argsort(trace.executor, kind="stable")  # executor by executor, in order of time
    same = trace.executor[rows][1:] == trace.executor[rows][:-1]
    assert (trace.start_ms[rows][1:] >= trace.end_ms[rows][:-1])[same].all()
    assert ((trace.end_ms - trace.start_ms)[~task] == moving_ms).all()
    if moving_ms > 0:
        stays = np.zeros(len(rows), bool)  # at the job its row before was about
        stays[1:] = same & (trace.job[rows][1:] == trace.job[rows][:-1])
        assert (stays | (trace.moving[rows] == 1)).all(), "an executor moved in no time"

    # A task ran only where both its demands are met.
    offers = np.repeat(
        [(group.cpu, group.memory) for group in settings.cluster],
        [group.count for group in settings.cluster],
        axis=0,
    )  # (executors, 2)
    assert (offers[trace.executor] >= bank.demand[profile]).all()


def check_counters(cluster: Cluster) -> None:
    """Every counter of the simulator against a fresh count of what it stands for."""
    state, bank = cluster.state, cluster.bank
    clock, executors, stride = state.clock, state.executors, int(state.setup[cols.STRIDE])
    promised = np.zeros(len(state.stages), np.int64)
    promised_in = np.zeros(len(state.jobs), np.int64)
    of_source = np.zeros(len(state.left), np.int64)
    used = 0
    for source, first in enumerate(state.commit_first):
        entry = first
        while entry != NONE:
            to, kind, amount, following = state.commitments[entry]
            assert amount > 0
            used += 1
            if to != NONE:
                promised[to] += amount
                home = source // stride if source < len(state.stages) else clock[cols.SOURCE_JOB]
                promised_in[to // stride] += amount * (to // stride != home)
            if source == clock[cols.SOURCE]:
                of_source[kind] += amount
            entry = following
    unused, entry = 0, clock[cols.FREE_COMMIT]
    while entry != NONE:
        unused, entry = unused + 1, state.commitments[entry, cols.NEXT]
    assert used + unused == len(executors) + 1

    busy = executors[:, cols.EVENT_MS] != NEVER
    idle = executors[:, cols.ACTIVITY] == cols.FREE
    bound = executors[:, cols.DESTINATION]
    assert clock[cols.PENDING] == busy.sum()
    assert clock[cols.POOLED] == (idle & (executors[:, cols.JOB] == NONE)).sum()
    if busy.any():
        next_event = np.lexsort((executors[:, cols.EVENT_NUMBER], executors[:, cols.EVENT_MS]))[0]
        assert state.tree[1] == next_event
        assert executors[next_event, cols.EVENT_MS] >= clock[cols.NOW]
    active = state.order[: clock[cols.ACTIVE]]
    assert sorted(active) == np.flatnonzero(state.jobs[:, cols.TEMPLATE] != NONE).tolist()
    assert (np.diff(state.jobs[active, cols.NUMBER]) > 0).all(), "first come first"
    for slot in active:
        job = state.jobs[slot]
        assert job[cols.MEMBERS] == (executors[:, cols.JOB] == slot).sum()
        assert job[cols.IDLE] == (idle & (executors[:, cols.JOB] == slot)).sum()
        assert job[cols.INCOMING] == ((bound != NONE) & (bound // stride == slot)).sum()
        assert job[cols.COMMITTED_IN] == promised_in[slot]
        first = slot * stride
        own = state.stages[first : first + job[cols.STAGES]]
        done = own[:, cols.FINISHED] == own[:, cols.TASKS]
        assert job[cols.STAGES_DONE] == done.sum() < job[cols.STAGES]
        for index, stage in enumerate(own):
            running = (busy & (executors[:, cols.STAGE] == first + index)).sum()
            assert stage[cols.STARTED] == stage[cols.FINISHED] + running <= stage[cols.TASKS]
            assert stage[cols.MOVING] == (bound == first + index).sum()
            assert stage[cols.COMMITTED] == promised[first + index]
            profile = stage[cols.PROFILE]
            parents = bank.parent[bank.parent_first[profile] : bank.parent_first[profile + 1]]
            assert stage[cols.WAITING] == (~done[parents]).sum()

    # The round's executors: those promised in it and those it has yet to place.
    if clock[cols.HELD_EXECUTOR] == NONE:
        members = idle & (executors[:, cols.JOB] == clock[cols.SOURCE_JOB])
    elif clock[cols.SOURCE] < len(state.stages):
        members = executors[:, cols.STAGE] == clock[cols.SOURCE]
    else:
        members = np.arange(len(executors)) == clock[cols.HELD_EXECUTOR]
    kinds = np.bincount(executors[members, cols.CLASS], minlength=len(state.left))
    assert (state.left + of_source == kinds).all()


def check_view(cluster: Cluster, chosen: set[tuple[int, int] | None]) -> None:
    """The observation against the state, and its mask against the rule for it.

    `chosen` are the (job, stage) pairs that this round has chosen before.
    """
    state, bank, view = cluster.state, cluster.bank, cluster.view
    jobs, stages, edges = (int(view.cluster[i]) for i in (obs.JOBS, obs.STAGES, obs.EDGES))
    total, free = len(state.executors), state.left.sum()
    for table, used in ((view.stages, stages), (view.jobs, jobs), (view.edges, edges)):
        assert not table[used:].any(), "a row not in use is not 0"
    assert not view.stage_job[stages:].any()
    assert not view.schedulable[stages:-1].any()
    assert view.cluster[obs.TOTAL_EXECUTORS] == total
    assert view.cluster[obs.FREE_EXECUTORS] == free
    assert 1 <= free <= total
    assert view.cluster[obs.MAY_IDLE] == view.schedulable[-1]
    assert view.schedulable[:-1].any(), "a decision without a choice"

    # Job by job in order of arrival; every task of theirs is unstarted, running or finished.
    places = [cluster.where(row) for row in range(stages)]
    assert places == sorted(places)
    assert (np.diff(view.stage_job[:stages]) >= 0).all()
    arrived = int(state.clock[cols.NEXT_JOB])
    tasks = np.add.reduceat(bank.tasks, bank.first_stage[:-1])[state.arrivals[:arrived, 1]]
    in_sight = view.stages[:stages, [obs.UNSTARTED, obs.RUNNING]].sum()
    assert in_sight + state.clock[cols.FINISHED_TASKS] == tasks.sum()
    assert view.stages[:stages, obs.RUNNING].sum() <= total
    assert (view.stages[:stages, obs.FITTING] <= free).all()
    assert (view.jobs[:jobs, obs.EXECUTORS] <= total).all()
    assert view.jobs[:jobs, obs.IS_SOURCE].sum() == (state.clock[cols.SOURCE_JOB] != NONE)
    assert (view.jobs[:jobs, obs.MIN_LIMIT] >= 1).all()
    for job in range(jobs):
        own = view.stages[:stages][view.stage_job[:stages] == job]
        work_left = own[:, obs.UNSTARTED] @ own[:, obs.MEAN_S]
        assert np.isclose(view.jobs[job, obs.WORK_LEFT_S], work_left, rtol=1e-4)
        assert view.jobs[job, obs.UNPLACED] == own[:, obs.UNASSIGNED].sum()

    # Edges are those of the templates between unfinished stages.
    parents: list[list[int]] = [[] for _ in range(stages)]
    for parent, child in view.edges[:edges]:
        parents[child].append(int(parent))
    for row, (number, stage) in enumerate(places):
        profile = bank.first_stage[state.arrivals[number, 1]] + stage
        known = bank.parent[bank.parent_first[profile] : bank.parent_first[profile + 1]]
        unfinished = {cluster.row_of(number, int(p)) for p in known if (number, p) in places}
        assert set(parents[row]) == unfinished
        assert view.stages[row, obs.RUNNABLE] == (not unfinished)
        may_choose = (
            view.stages[row, obs.UNASSIGNED] > 0
            and all(view.stages[p, obs.UNASSIGNED] == 0 for p in unfinished)
            and view.stages[row, obs.FITTING] > 0
            and (number, stage) not in chosen
        )
        assert view.schedulable[row] == may_choose
