"""Invariants of schedules, states and observations, on built-in workloads and random DAGs."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from loadmaster.envs.dag_scheduling import observation as obs
from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.baselines import BASELINES
from loadmaster.envs.dag_scheduling.env import DagSchedulingEnv
from loadmaster.envs.dag_scheduling.jobs import Stage, Workload
from loadmaster.envs.dag_scheduling.rollout import EpisodeResult
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.state import DONE, HORIZON, NEVER, NONE
from loadmaster.envs.dag_scheduling.workloads import load_workload
from tests.envs.dag_scheduling.cluster import Cluster, play_legally, simulate, workload_of


def check_schedule(
    result: EpisodeResult, workload: Workload, settings: DagSchedulingSettings
) -> None:
    """Check that a finished episode's trace runs each task once, in order, where it fits."""
    bank, trace = workload.bank, result.trace
    assert trace is not None
    moving_ms = round(settings.moving_delay_s * 1000)
    arrival_ms = np.rint(result.arrival_s * 1000).astype(np.int64)
    assert (np.diff(trace.start_ms) >= 0).all()
    assert (trace.end_ms >= trace.start_ms).all()
    assert (trace.start_ms >= arrival_ms[trace.job]).all()

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

    # No executor is in two places, or in another job without having moved there.
    rows = np.argsort(trace.executor, kind="stable")  # executor by executor, in order of time
    same = trace.executor[rows][1:] == trace.executor[rows][:-1]
    assert (trace.start_ms[rows][1:] >= trace.end_ms[rows][:-1])[same].all()
    assert ((trace.end_ms - trace.start_ms)[~task] == moving_ms).all()
    if moving_ms > 0:
        stays = np.zeros(len(rows), bool)  # at the job of its previous row
        stays[1:] = same & (trace.job[rows][1:] == trace.job[rows][:-1])
        assert (stays | (trace.moving[rows] == 1)).all()

    # A task ran only where both its demands are met.
    offers = np.repeat(
        [(group.cpu, group.memory) for group in settings.cluster],
        [group.count for group in settings.cluster],
        axis=0,
    )  # (executors, 2)
    assert (offers[trace.executor] >= bank.demand[profile]).all()


def check_counters(cluster: Cluster) -> None:
    """Recount every counter of the simulator."""
    state, bank = cluster.state, cluster.bank
    clock, executors, stride = state.clock, state.executors, int(state.setup[cols.STRIDE])
    committed = np.zeros(len(state.stages), np.int64)
    committed_in = np.zeros(len(state.jobs), np.int64)
    of_source = np.zeros(len(state.left), np.int64)
    used = 0
    for source, first in enumerate(state.commit_first):
        entry = first
        while entry != NONE:
            to, kind, amount, following = state.commitments[entry]
            assert amount > 0
            used += 1
            if to != NONE:
                committed[to] += amount
                home = source // stride if source < len(state.stages) else clock[cols.SOURCE_JOB]
                committed_in[to // stride] += amount * (to // stride != home)
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
    assert (np.diff(state.jobs[active, cols.NUMBER]) > 0).all()
    for slot in active:
        job = state.jobs[slot]
        assert job[cols.MEMBERS] == (executors[:, cols.JOB] == slot).sum()
        assert job[cols.IDLE] == (idle & (executors[:, cols.JOB] == slot)).sum()
        assert job[cols.INCOMING] == ((bound != NONE) & (bound // stride == slot)).sum()
        assert job[cols.COMMITTED_IN] == committed_in[slot]
        first = slot * stride
        own = state.stages[first : first + job[cols.STAGES]]
        done = own[:, cols.FINISHED] == own[:, cols.TASKS]
        assert job[cols.STAGES_DONE] == done.sum() < job[cols.STAGES]
        for index, stage in enumerate(own):
            running = (busy & (executors[:, cols.STAGE] == first + index)).sum()
            assert stage[cols.STARTED] == stage[cols.FINISHED] + running <= stage[cols.TASKS]
            assert stage[cols.MOVING] == (bound == first + index).sum()
            assert stage[cols.COMMITTED] == committed[first + index]
            profile = stage[cols.PROFILE]
            parents = bank.parent[bank.parent_first[profile] : bank.parent_first[profile + 1]]
            assert stage[cols.WAITING] == (~done[parents]).sum()

    # The round's executors: those committed in it and those not yet placed.
    if clock[cols.HELD_EXECUTOR] == NONE:
        members = idle & (executors[:, cols.JOB] == clock[cols.SOURCE_JOB])
    elif clock[cols.SOURCE] < len(state.stages):
        members = executors[:, cols.STAGE] == clock[cols.SOURCE]
    else:
        members = np.arange(len(executors)) == clock[cols.HELD_EXECUTOR]
    kinds = np.bincount(executors[members, cols.CLASS], minlength=len(state.left))
    assert (state.left + of_source == kinds).all()


def check_view(cluster: Cluster, chosen: set[tuple[int, int] | None]) -> None:
    """Check the observation against the state; `chosen` are this round's (job, stage) pairs."""
    state, bank, view = cluster.state, cluster.bank, cluster.view
    jobs, stages, edges = (int(view.cluster[i]) for i in (obs.JOBS, obs.STAGES, obs.EDGES))
    total, free = len(state.executors), state.left.sum()
    for table, used in ((view.stages, stages), (view.jobs, jobs), (view.edges, edges)):
        assert not table[used:].any()
    assert not view.stage_job[stages:].any()
    assert not view.schedulable[stages:-1].any()
    assert view.cluster[obs.TOTAL_EXECUTORS] == total
    assert view.cluster[obs.FREE_EXECUTORS] == free
    assert 1 <= free <= total
    assert view.cluster[obs.MAY_IDLE] == view.schedulable[-1]
    assert view.schedulable[:-1].any()

    # Job by job in order of arrival; every task of theirs is unstarted, running or finished.
    places = [cluster.where(row) for row in range(stages)]
    assert places == sorted(places)
    assert (np.diff(view.stage_job[:stages]) >= 0).all()
    arrived = int(state.clock[cols.NEXT_JOB])
    tasks = np.add.reduceat(bank.tasks, bank.first_stage[:-1])[state.arrivals[:arrived, 1]]
    visible = view.stages[:stages, [obs.UNSTARTED, obs.RUNNING]].sum()
    assert visible + state.clock[cols.FINISHED_TASKS] == tasks.sum()
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


TWO_CLASSES = ({"count": 6, "cpu": 1.0, "memory": 0.5}, {"count": 4, "cpu": 1.0, "memory": 1.0})
EPISODES = {
    "batch": {"arrivals": "batch", "jobs": 8},
    "stream": {"arrivals": "poisson", "jobs": 20, "executors": 30},
    "free moves": {"arrivals": "poisson", "jobs": 10, "moving_delay_s": 0.0, "executors": 7},
    "two classes": {"arrivals": "poisson", "jobs": 10, "executor_classes": TWO_CLASSES},
}
episodes = pytest.mark.parametrize("values", EPISODES.values(), ids=EPISODES)


@episodes
@pytest.mark.parametrize("policy", BASELINES)
def test_every_baseline_gives_a_valid_schedule(policy: str, values: dict[str, Any]) -> None:
    settings = DagSchedulingSettings(**values)
    check_schedule(simulate(policy, 1, record=True, **values), load_workload(settings), settings)


@episodes
@pytest.mark.parametrize("objective", ["jct", "makespan"])
def test_random_actions_give_a_valid_schedule(objective: str, values: dict[str, Any]) -> None:
    env = DagSchedulingEnv(record=True, objective=objective, **values)
    rewards, last = play_legally(env, seed=1)
    result = env.result()
    assert last[2]
    check_schedule(result, env.workload, env.settings)
    assert result.decisions == len(rewards)
    assert (rewards <= 0).all()
    paid = result.jct_s.sum() if objective == "jct" else result.makespan_s
    assert rewards.sum() == pytest.approx(-paid, rel=1e-9)
    assert result.end_s == result.makespan_s


durations = st.lists(st.integers(0, 3000) | st.just(0), max_size=3)
offers = st.sampled_from([0.25, 0.5, 1.0])


@st.composite
def stages(draw: st.DrawFn, classes: list[dict[str, Any]]) -> tuple[Stage, ...]:
    """Draw a DAG with stages in any order, each with demands that some class meets."""
    count = draw(st.integers(1, 6))
    order = draw(st.permutations(range(count)))  # parents before children
    made: dict[int, Stage] = {}
    for position, number in enumerate(order):
        earlier = order[:position]
        parents = draw(st.sets(st.sampled_from(earlier), max_size=3)) if earlier else set()
        levels = draw(st.sets(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=3))
        waves = [{level: draw(durations) for level in sorted(levels)} for _ in range(3)]
        if not any(listed for wave in waves for listed in wave.values()):
            waves[0][min(levels)] = [500]
        home = draw(st.sampled_from(classes))
        made[number] = Stage(
            draw(st.integers(1, 5)),
            tuple(sorted(parents)),
            *waves,
            cpu=draw(st.sampled_from([0.0, home["cpu"] / 2, home["cpu"]])),
            memory=draw(st.sampled_from([0.0, home["memory"] / 2, home["memory"]])),
        )
    return tuple(made[number] for number in range(count))


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    kinds = draw(st.integers(1, 3))
    classes = [
        {"count": draw(st.integers(1, 6 // kinds)), "cpu": draw(offers), "memory": draw(offers)}
        for _ in range(kinds)
    ]
    jobs = draw(st.lists(stages(classes), min_size=1, max_size=3))
    times = draw(st.lists(st.sampled_from([0, 0, 1, 500, 2000, 6000]), min_size=1, max_size=5))
    return Cluster(
        workload_of(*jobs),
        [(when, draw(st.integers(0, len(jobs) - 1))) for when in sorted(times)],
        seed=draw(st.integers(0, 1 << 62)),
        slots=draw(st.sampled_from([0, 1, 2])),
        trace_rows=draw(st.sampled_from([1, 1000])),
        horizon_ms=draw(st.just(NEVER - 1) | st.integers(0, 9000)),
        executor_classes=classes,
        moving_delay_s=draw(st.sampled_from([0.0, 0.001, 0.5, 2.0])),
        warmup_s=draw(st.sampled_from([0.0, 1.0])),
        interpolation=draw(st.sampled_from(["corrected", "as-published"])),
    )


def decide_at_random(
    cluster: Cluster, rng: np.random.Generator, idling: float
) -> tuple[int, int] | None:
    """Act once and check the executors granted; return the (job, stage) chosen."""
    view, total = cluster.view, len(cluster.state.executors)
    free = int(cluster.state.left.sum())
    if cluster.may_idle and rng.random() < idling:
        assert cluster.idle() == free
        return None
    row = int(rng.choice(np.flatnonzero(view.schedulable[:-1])))
    limit = int(rng.integers(1, total + 1))
    job = view.jobs[view.stage_job[row]]
    held = job[obs.EXECUTORS] - (free if job[obs.IS_SOURCE] else 0)
    expected = min(view.stages[row, obs.UNASSIGNED], limit - held, view.stages[row, obs.FITTING])
    legal, granted = cluster.act(row, limit)
    assert legal
    assert granted == max(expected, 1)  # a limit too low counts as the lowest with an effect
    return cluster.where(row)


def check_end(cluster: Cluster) -> None:
    """Check the outcome of an episode that is over, by its last job or at its horizon."""
    clock, result, trace = cluster.state.clock, cluster.result(), cluster.result().trace
    left_s = np.fmin(result.completion_s, result.end_s)
    in_system_s = np.maximum(left_s - result.arrival_s, 0).sum()
    assert clock[cols.JOB_MS] == pytest.approx(1000 * in_system_s)
    if clock[cols.STATUS] == DONE:
        check_schedule(result, cluster.workload, cluster.settings)
        assert result.end_s == result.makespan_s
        return
    assert clock[cols.STATUS] == HORIZON
    assert cluster.now_ms == cluster.state.setup[cols.HORIZON_MS]
    assert np.isnan(result.completion_s).any()
    assert trace is not None
    assert (trace.start_ms <= cluster.now_ms).all()
    assert result.tasks == ((trace.end_ms <= cluster.now_ms) & (trace.moving == 0)).sum()


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(clusters(), st.integers(0, 1 << 32), st.sampled_from([0.0, 0.3, 0.9]))
def test_random_clusters_under_random_actions(cluster: Cluster, seed: int, idling: float) -> None:
    rng = np.random.default_rng(seed)
    now_ms, this_round, chosen = 0, -1, set[tuple[int, int] | None]()
    while cluster.decision():
        assert cluster.now_ms >= now_ms
        now_ms = cluster.now_ms
        if cluster.state.clock[cols.ROUND] != this_round:
            this_round, chosen = int(cluster.state.clock[cols.ROUND]), set()
        check_counters(cluster)
        check_view(cluster, chosen)
        chosen.add(decide_at_random(cluster, rng, idling))
    check_end(cluster)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, derandomize=True)
@given(clusters(), st.sampled_from(sorted(BASELINES)))
def test_random_clusters_under_every_baseline(cluster: Cluster, policy: str) -> None:
    cluster.finish(policy)
    check_end(cluster)
