"""Decisions of the agents, with and without preemption: rules, accounting, and termination."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.envs.gpu_scheduling import decision_state as decisions
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.actions import ORDERING, PLACEMENT
from loadmaster.envs.gpu_scheduling.decision_state import PLACING, PLACING_AGAIN, RECONSIDERING
from loadmaster.envs.gpu_scheduling.episode import run_episode
from loadmaster.envs.gpu_scheduling.episode_runner import EpisodeRunner
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from tests.envs.gpu_scheduling import instances
from tests.envs.gpu_scheduling.instances import given_jobs, job, many, play, running, shown
from tests.envs.gpu_scheduling.reference import check_schedule

pytestmark = pytest.mark.slow

PHASES_OF_EVENT = [
    [PLACING],
    [RECONSIDERING],
    [PLACING, RECONSIDERING],
    [RECONSIDERING, PLACING_AGAIN],
    [PLACING, RECONSIDERING, PLACING_AGAIN],
]


class Decision(NamedTuple):
    """The situation before a decision, and the jobs that run right after it."""

    event: tuple[float, int, int]  # time, finished jobs, arrived jobs
    phase: int
    shown: list[int]
    priority: list[float]  # of the jobs shown
    waiting: set[int]
    running: set[int]
    running_after: set[int]

    @property
    def stopped(self) -> set[int]:
        return self.running - self.running_after


def watch(runner: EpisodeRunner, policy: instances.Policy) -> list[Decision]:
    """Run an episode to its end."""
    taken = []
    while runner.advance_to_decision():
        clock, actions = runner.state.clock, policy(runner)
        finished = np.isfinite(runner.state.progress[:, cols.FINISHED_S])
        in_system = set(np.flatnonzero(~finished[: clock[cols.NEXT_JOB]]).tolist())
        before, rows = running(runner), shown(runner)
        now = float(runner.state.times[cols.NOW])
        event = now, int(clock[cols.FINISHED]), int(clock[cols.NEXT_JOB])
        phase = int(runner.decision_state.counts[decisions.PHASE])
        priority = actions[ORDERING][: len(rows)].tolist()
        runner.decide(actions[ORDERING], actions[PLACEMENT])
        after = running(runner)
        taken.append(Decision(event, phase, rows, priority, in_system - before, before, after))
    return taken


def drawn(
    data: st.DataObject, rows: int, preempt: bool = True
) -> tuple[EpisodeRunner, GpuSchedulingSettings]:
    settings, (_, jobs, _) = data.draw(instances.episodes(disturbed=True))
    changed = {"arrivals": "trace", "require_types": True, "max_queue": rows, "history": 3}
    settings = settings.model_copy(update={**changed, "preempt": preempt})
    return EpisodeRunner(settings, 0, given_jobs(jobs), record=True), settings


def check_events(taken: list[Decision], jobs: int) -> None:
    """At most one reconsideration per event, and time advances between events."""
    events: dict[tuple[float, int, int], list[int]] = {}
    for decision in taken:
        events.setdefault(decision.event, []).append(decision.phase)
    assert list(events) == sorted(events)
    assert all(phases in PHASES_OF_EVENT for phases in events.values())
    assert len(events) <= 2 * jobs, "a job arrives once and ends once"


def check_decision(decision: Decision, backfill: bool) -> None:
    assert decision.shown == sorted(decision.shown), "in order of arrival"
    if decision.phase != RECONSIDERING:
        assert not decision.stopped
        assert set(decision.shown) <= decision.waiting
        started = decision.running_after - decision.running
        assert started <= set(decision.shown)
        assert started or not backfill, "no job could start"
        return
    assert decision.running_after <= decision.running
    assert decision.waiting
    assert decision.waiting <= set(decision.shown)
    assert decision.running & set(decision.shown), "no job could be stopped"
    assert decision.stopped <= set(decision.shown)
    priority = dict(zip(decision.shown, decision.priority, strict=True))
    first = max(decision.shown, key=lambda number: priority[number])
    assert first not in decision.stopped
    best_waiting = max(priority[number] for number in decision.waiting)
    assert all(priority[number] < best_waiting for number in decision.stopped)


@pytest.mark.parametrize("preempt", [False, True])
@many
@given(st.data())
def test_random_policy_passes_audit(preempt: bool, data: st.DataObject) -> None:
    """Priorities change at every decision; with few rows, running jobs are hidden."""
    rows = data.draw(st.sampled_from((20, 5)))
    runner, settings = drawn(data, rows, preempt)
    taken = watch(runner, instances.at_random(data.draw(st.integers(0, 99))))
    result = runner.result()
    check_events(taken, len(result.finish_s))
    for decision in taken:
        check_decision(decision, settings.backfill)
    assert result.preemptions == sum(len(decision.stopped) for decision in taken)
    assert preempt or all(decision.phase == PLACING for decision in taken)
    # Hidden jobs may wait although they fit, as without backfill.
    strict = settings.model_copy(update={"backfill": False})
    check_schedule(result, runner.episode, settings if rows == 20 else strict)
    sums = runner.decision_state.sums[[decisions.JOB_S, decisions.FEE]]
    assert sums == pytest.approx([result.jct_s.sum(), result.fee.sum()], rel=1e-12)


@many
@given(st.data())
def test_running_first_equals_no_preemption(data: st.DataObject) -> None:
    runner, settings = drawn(data, 20)
    assert not any(decision.stopped for decision in watch(runner, instances.running_first))
    expected = play("fifo-first-fit", settings, runner.episode)
    assert np.array_equal(runner.result().finish_s, expected.finish_s)
    assert np.array_equal(runner.result().fee, expected.fee)


@many
@given(st.integers(0, 99), st.sampled_from((0.0, 3.0, 60.0)), st.integers(1, 4))
def test_srtf_as_policy_equals_baseline(seed: int, restart_s: float, gpus: int) -> None:
    """On one machine, with jobs of one GPU."""
    rng = np.random.default_rng(seed)
    rows = [job(float(rng.uniform(0, 60)), float(rng.uniform(1, 20))) for _ in range(15)]
    settings = GpuSchedulingSettings(
        machines=(instances.machines(1, gpus),),
        arrivals="trace",
        stragglers=0,
        restart_s=restart_s,
        preempt=True,
    )
    runner = EpisodeRunner(settings, 0, given_jobs(instances.jobs_of(rows)))
    watch(runner, instances.shortest_remaining)
    expected = play("srtf-first-fit", settings, runner.episode)
    assert runner.result().finish_s == pytest.approx(expected.finish_s, rel=1e-12)
    assert runner.result().preemptions == expected.preemptions


@pytest.mark.parametrize("backfill", [True, False])
def test_preempting_at_every_event_terminates_with_and_without_trace(backfill: bool) -> None:
    """A full trace interrupts `advance` within an event, without further decisions."""
    runs = []
    for record in (False, True):
        settings = GpuSchedulingSettings(preempt=True, jobs=120, load=1.5, backfill=backfill)
        runner = EpisodeRunner(settings, 2, load_workload(settings), record)
        rows = len(runner.state.trace)
        runs.append((watch(runner, instances.pending_first), runner.result()))
        assert len(runner.state.trace) > rows or not record
    (unrecorded, expected), (taken, result) = runs
    assert taken == unrecorded
    assert np.array_equal(result.finish_s, expected.finish_s)
    check_events(taken, 120)
    for decision in taken:
        check_decision(decision, backfill)
    assert result.preemptions > 120
    assert np.isfinite(result.finish_s).all()
    check_schedule(result, runner.episode, settings)


@pytest.mark.parametrize("policy", ["fifo-first-fit", "las-consolidate"])
def test_setting_preempt_does_not_change_baselines(policy: str) -> None:
    one, other = (
        run_episode(policy, GpuSchedulingSettings(jobs=60, preempt=preempt), 3)
        for preempt in (False, True)
    )
    assert np.array_equal(one.finish_s, other.finish_s)
