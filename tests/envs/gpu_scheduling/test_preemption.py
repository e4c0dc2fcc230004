"""Agents that may stop running jobs: what they may do to whom, and that the books still agree."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as given_settings
from hypothesis import strategies as st

from loadmaster.envs.gpu_scheduling import decision_state as on
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.actions import ORDERING
from loadmaster.envs.gpu_scheduling.cluster import MachineGroup
from loadmaster.envs.gpu_scheduling.env import GpuSchedulingEnv
from loadmaster.envs.gpu_scheduling.episode import Episode, run_episode
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from tests.envs.gpu_scheduling.doors import (
    Given,
    Policy,
    at_random,
    finish,
    pending_first,
    running,
    running_first,
    shortest_remaining,
    shown,
)
from tests.envs.gpu_scheduling.instances import episodes, jobs_of, play
from tests.envs.gpu_scheduling.ledger import check_schedule

# What may be asked at one event, in this order.
COURSES = [
    [on.PLACING],
    [on.RECONSIDERING],
    [on.PLACING, on.RECONSIDERING],
    [on.RECONSIDERING, on.PLACING_AGAIN],
    [on.PLACING, on.RECONSIDERING, on.PLACING_AGAIN],
]
many = given_settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Seen(NamedTuple):
    """A decision: the situation before it, and who runs right after it."""

    event: tuple[float, int, int]  # when, and how many jobs had ended and come
    moment: int
    shown: list[int]
    priority: list[float]  # of those shown
    waiting: set[int]
    running: set[int]
    running_after: set[int]

    @property
    def stopped(self) -> set[int]:
        return self.running - self.running_after


class Watched(GpuSchedulingEnv):
    """It remembers who ran when an action had been applied, before time went on."""

    running_after: frozenset[int] = frozenset()

    def _run(self) -> int:
        self.running_after = frozenset(running(self))
        return super()._run()


def watch(env: Watched, policy: Policy, seed: int = 0) -> list[Seen]:
    """Play an episode to its end, and look on."""
    env.reset(seed=seed)
    decisions = []
    while env.agents:
        clock, actions = env._state.clock, policy(env)
        finished = np.isfinite(env._state.progress[:, at.FINISHED_S])
        here = np.flatnonzero(~finished[: clock[at.NEXT_JOB]]).tolist()
        before, rows = running(env), shown(env)
        decision = (
            (float(env._state.times[at.NOW]), int(clock[at.FINISHED]), int(clock[at.NEXT_JOB])),
            int(env._desk.counts[on.MOMENT]),
            rows,
            actions[ORDERING][: len(rows)].tolist(),
            set(here) - before,
            before,
        )
        env.step(actions)
        decisions.append(Seen(*decision, set(env.running_after)))
    return decisions


def drawn_environment(data: st.DataObject, rows: int) -> tuple[Watched, Episode]:
    """Jobs and machines as hypothesis likes them."""
    drawn, (cluster, jobs, _) = data.draw(episodes(disturbed=True))
    values = drawn.model_dump() | {"arrivals": "trace", "require_types": True}
    values |= {"machines": drawn.machines, "max_queue": rows, "history": 3, "preempt": True}
    env = Watched(Given(jobs), record=True, **values)
    env.reset(seed=0)
    assert env._episode is not None
    return env, Episode(cluster, env._episode.jobs, env._episode.luck)


def check_course(decisions: list[Seen], jobs: int) -> None:
    """At most one reconsideration at an event, and every event is another one."""
    events: dict[tuple[float, int, int], list[int]] = {}
    for decision in decisions:
        events.setdefault(decision.event, []).append(decision.moment)
    assert list(events) == sorted(events), "time goes back"
    assert all(course in COURSES for course in events.values())
    assert len(events) <= 2 * jobs, "a job arrives once and ends once"


def check_decision(seen: Seen, backfill: bool) -> None:
    assert seen.shown == sorted(seen.shown), "in order of arrival"
    if seen.moment != on.RECONSIDERING:
        assert not seen.stopped, "placing stops nobody"
        assert set(seen.shown) <= seen.waiting
        started = seen.running_after - seen.running
        assert started <= set(seen.shown)
        assert started or not backfill, "nobody is asked in vain"
        return
    assert seen.running_after <= seen.running, "reconsidering starts nobody"
    assert seen.waiting, "nobody waits"
    assert seen.waiting <= set(seen.shown)
    assert seen.running & set(seen.shown), "nobody is asked in vain"
    assert seen.stopped <= set(seen.shown), "who is not shown is left alone"
    priority = dict(zip(seen.shown, seen.priority, strict=True))
    first = max(seen.shown, key=lambda job: priority[job])
    assert first not in seen.stopped
    best_waiting = max(priority[job] for job in seen.waiting)
    assert all(priority[job] < best_waiting for job in seen.stopped), "stopped for nobody"


@many
@given(st.data())
def test_any_policy_that_preempts_keeps_the_rules(data: st.DataObject) -> None:
    """Random priorities, which turn round at every decision; few rows hide jobs that run."""
    rows = data.draw(st.sampled_from((20, 5)))
    env, episode = drawn_environment(data, rows)
    decisions = watch(env, at_random(data.draw(st.integers(0, 99))))
    result = env.result()
    check_course(decisions, len(result.finish_s))
    for decision in decisions:
        check_decision(decision, env.settings.backfill)
    assert result.preemptions == sum(len(decision.stopped) for decision in decisions)
    # Where jobs are hidden they may wait although they fit, as in a strict queue.
    strict = env.settings.model_copy(update={"backfill": False})
    check_schedule(result, episode, env.settings if rows == 20 else strict)
    assert env._desk.sums[on.JOB_S] == pytest.approx(result.jct_s.sum(), rel=1e-12)
    assert env._desk.sums[on.FEE] == pytest.approx(result.fee.sum(), rel=1e-12)


@many
@given(st.data())
def test_whoever_runs_first_is_never_stopped(data: st.DataObject) -> None:
    """Then the episode is the one without preemption, although everybody was asked."""
    env, episode = drawn_environment(data, 20)
    decisions = watch(env, running_first)
    assert not any(decision.stopped for decision in decisions)
    settings = env.settings.model_copy(update={"preempt": False})
    expected = play("fifo-first-fit", settings, episode)
    assert np.array_equal(env.result().finish_s, expected.finish_s)
    assert np.array_equal(env.result().fee, expected.fee)


@given(st.integers(0, 99), st.sampled_from((0.0, 3.0, 60.0)), st.integers(1, 4))
def test_shortest_remaining_time_through_the_door_is_the_compiled_one(
    seed: int, restart_s: float, gpus: int
) -> None:
    """On one machine, for jobs of one GPU, both stop and start the same jobs."""
    rng = np.random.default_rng(seed)
    rows = [
        (float(rng.uniform(0, 60)), float(rng.uniform(1, 20)), 1, 100, 100, ANY_TYPE, 0.0, 0)
        for _ in range(15)
    ]
    machine = MachineGroup(count=1, gpus=gpus, gpu="V100", cpus=32)
    values = {"machines": (machine,), "arrivals": "trace", "stragglers": 0, "restart_s": restart_s}
    env = Watched(Given(jobs_of(rows)), preempt=True, **values)
    watch(env, shortest_remaining)
    assert env._episode is not None
    settings = GpuSchedulingSettings.model_validate(values)
    expected = play("srtf-first-fit", settings, env._episode)
    assert env.result().finish_s == pytest.approx(expected.finish_s, rel=1e-12)
    assert env.result().preemptions == expected.preemptions


@pytest.mark.parametrize("backfill", [True, False])
def test_who_turns_everybody_out_at_every_event_still_comes_to_an_end(backfill: bool) -> None:
    env = Watched(jobs=120, load=1.5, preempt=True, backfill=backfill, record=True)
    decisions = watch(env, pending_first, seed=2)
    result, episode = env.result(), env._episode
    check_course(decisions, 120)
    for decision in decisions:
        check_decision(decision, backfill)
    assert result.preemptions > 120
    assert np.isfinite(result.finish_s).all()
    assert episode is not None
    strict = env.settings.model_copy(update={"backfill": False})
    check_schedule(result, episode, env.settings if backfill else strict)


@pytest.mark.parametrize("backfill", [True, False])
def test_recording_asks_for_no_other_decisions(backfill: bool) -> None:
    """A trace that is full stops the clock in the midst of an event."""
    results, asked, room = [], [], 0
    for record in (False, True):
        env = Watched(record=record, jobs=120, load=1.5, preempt=True, backfill=backfill)
        env.reset(seed=2)
        room = len(env._state.trace)
        asked.append(watch(env, pending_first, seed=2))
        results.append(env.result())
    assert len(env._state.trace) > room > 0
    assert asked[0] == asked[1]
    assert np.array_equal(results[0].finish_s, results[1].finish_s)


def test_the_same_seed_and_actions_give_the_same_episode() -> None:
    env = Watched(jobs=60, preempt=True)
    one, other, another = (watch(env, at_random(policy), seed=3) for policy in (0, 0, 1))
    assert one == other != another
    assert any(decision.stopped for decision in one)


@pytest.mark.parametrize("reward", ["cost", "published"])
def test_the_rewards_add_up(reward: str) -> None:
    env = GpuSchedulingEnv(jobs=60, preempt=True, reward=reward)
    env.reset(seed=5)
    rewards = finish(env, at_random(0))
    assert np.isfinite(rewards).all()
    result = env.result()
    assert result.preemptions > 0
    if reward == "cost":
        cost = result.jct_s.sum() / env.scales.jct_s + result.fee.sum() / env.scales.fee
        assert sum(rewards) == pytest.approx(-cost, rel=1e-12)
    else:
        assert sum(rewards) == pytest.approx(env._desk.sums[on.PUBLISHED])


def test_agents_stop_jobs_where_heuristics_of_the_same_name_do_not() -> None:
    """`preempt` is the agents' right alone: a heuristic does what it always does."""
    for policy in ("fifo-first-fit", "las-consolidate"):
        one, other = (
            run_episode(policy, GpuSchedulingSettings(jobs=60, preempt=preempt), 3)
            for preempt in (False, True)
        )
        assert np.array_equal(one.finish_s, other.finish_s)
