"""The environment's doors: what is asked, what is shown, what is done, and what it is worth."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling import features as told
from loadmaster.envs.gpu_scheduling.actions import AGENTS, ORDERING, PLACEMENT
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
    first_come_first_fit,
    shortest_consolidated,
)
from tests.envs.gpu_scheduling.instances import episodes, jobs_of
from tests.envs.gpu_scheduling.ledger import check_schedule

ONE_MACHINE = MachineGroup(count=1, gpus=4, gpu="V100", cpus=32)
TOY: dict[str, Any] = {
    "workload": "toy",
    "arrivals": "trace",
    "machines": (ONE_MACHINE,),
    "interference": False,
    "stragglers": 0,
}


def look(env: GpuSchedulingEnv, seed: int = 0) -> dict[str, Any]:
    observations, _ = env.reset(seed=seed)
    return observations[ORDERING]


@pytest.mark.parametrize("backfill", [True, False])
@pytest.mark.parametrize("cluster", ["small", "medium"])
@pytest.mark.parametrize(
    ("baseline", "policy"),
    [("fifo-first-fit", first_come_first_fit), ("sjf-consolidate", shortest_consolidated)],
)
def test_a_heuristic_through_the_door_is_the_compiled_one(
    baseline: str, policy: Policy, cluster: str, backfill: bool
) -> None:
    values = {"cluster": cluster, "backfill": backfill, "load": 1.5, "max_queue": 100, "jobs": 100}
    env = GpuSchedulingEnv(**values)
    for seed in (3, 4):
        env.reset(seed=seed)
        finish(env, policy)
        result = env.result()
        expected = run_episode(baseline, GpuSchedulingSettings(**values), seed)
        assert np.array_equal(result.start_s, expected.start_s)
        assert np.array_equal(result.finish_s, expected.finish_s)
        assert np.array_equal(result.fee, expected.fee)


@given(st.data())
def test_any_policy_keeps_the_rules(data: st.DataObject) -> None:
    """The whole schedule is recounted from its trace; something is placed at every decision."""
    drawn, (cluster, jobs, _) = data.draw(episodes(disturbed=True))
    values = drawn.model_dump() | {"arrivals": "trace", "require_types": True}
    values |= {"machines": drawn.machines, "max_queue": 20, "history": 3}
    env = GpuSchedulingEnv(Given(jobs), record=True, **values)
    env.reset(seed=data.draw(st.integers(0, 99)))
    policy = at_random(data.draw(st.integers(0, 99)))
    while env.agents:
        before = env.result()
        observations, _, over, _, _ = env.step(policy(env))
        placed = np.isnan(before.start_s) & ~np.isnan(env.result().start_s)
        assert placed.any() or not env.settings.backfill
        if not over[ORDERING]:
            assert observations[ORDERING]["held"].any(), "nobody is asked in vain"
    assert env._episode is not None
    episode = Episode(cluster, env._episode.jobs, env._episode.luck)
    check_schedule(env.result(), episode, env.settings)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.25, 3.0)])
def test_the_costs_add_up_to_completion_times_and_fees(weights: tuple[float, float]) -> None:
    jct_weight, fee_weight = weights
    env = GpuSchedulingEnv(jobs=60, jct_weight=jct_weight, fee_weight=fee_weight)
    env.reset(seed=5)
    rewards = finish(env, at_random(0))
    result = env.result()
    jct = jct_weight * result.jct_s.mean() / env.scales.jct_s
    fee = fee_weight * result.fee.mean() / env.scales.fee
    assert sum(rewards) == pytest.approx(-60 * (jct + fee), rel=1e-12)


def test_the_scales_are_what_first_come_first_served_costs() -> None:
    settings = GpuSchedulingSettings(jobs=50)
    results = [run_episode("fifo-first-fit", settings, seed) for seed in range(4)]
    scales = GpuSchedulingEnv(jobs=50).scales
    assert scales.jct_s == pytest.approx(np.mean([result.jct_s.mean() for result in results]))
    assert scales.fee == pytest.approx(np.mean([result.fee.mean() for result in results]))


def test_a_decision_costs_about_one() -> None:
    env = GpuSchedulingEnv()
    env.reset(seed=1)
    rewards = finish(env, first_come_first_fit)
    assert -3 < np.mean(rewards) < -0.3


def test_the_published_reward_by_hand() -> None:
    """Jobs 0 to 3 start as they come; job 4 waits from 3 s to 10 s and runs until 18 s."""
    env = GpuSchedulingEnv(**TOY, reward="published")
    env.reset(seed=0)
    assert finish(env, first_come_first_fit) == pytest.approx([1, 1, 1, 8 / 15])


def test_the_published_reward_of_those_left_waiting() -> None:
    """All at once: four jobs start, the one of four GPUs waits until 10 s."""
    values = {**TOY, "arrivals": "batch", "waiting_penalty": 0.1}
    env = GpuSchedulingEnv(**values, reward="published")
    env.reset(seed=0)
    rewards = finish(env, first_come_first_fit)
    assert sorted(rewards) == pytest.approx(sorted([(4 - 0.1 * 4) / 5, 8 / 18]))


def test_the_published_reward_knows_the_neighbours() -> None:
    """Two halves of one P100 keep 1 - (0.4 / 0.34) x 0.21 each: that much slower and dearer."""
    half = (0.0, 5.0, 1, 50, 100, ANY_TYPE, 0.0, 0)
    group = MachineGroup(count=1, gpus=1, gpu="P100", cpus=32)
    values = {**TOY, "workload": "pai-like", "machines": (group,), "interference": True}
    env = GpuSchedulingEnv(Given(jobs_of([half, half])), **values, reward="published")
    env.reset(seed=0)
    assert finish(env, first_come_first_fit) == pytest.approx([(1 - 0.4 / 0.34 * 0.21) ** 2])


def test_the_published_reward_is_bounded() -> None:
    env = GpuSchedulingEnv(jobs=60, reward="published", stragglers=0)
    env.reset(seed=5)
    rewards = finish(env, at_random(0))
    assert -0.01 * 32 <= min(rewards) < max(rewards) <= 1


def test_what_is_shown_by_hand() -> None:
    env = GpuSchedulingEnv(**TOY, durations="known", max_queue=4, history=3)
    seen = look(env)
    assert seen["job_mask"].tolist() == [True, True, False, False]
    assert seen["held"].tolist() == seen["rack_held"].tolist() == [[1], [1], [0], [0]]
    assert seen["heeded"].tolist() == [True, True, False, False]
    assert not seen["history_mask"].any()
    zero = seen["jobs"][0]
    expected = {told.INSTANCES: 0.0, told.GPUS: np.log(2), told.CORES: np.log(2)}
    expected |= {told.GPU_SHARE: 1 / 4, told.CPU_SHARE: 1 / 32, told.SHARES: 0, told.COMM: 0}
    expected |= {told.WAITED: 0, told.STARTS: 1, told.RUN: np.log1p(10 / 60), told.USER_SHARE: 0}
    assert [zero[column] for column in expected] == pytest.approx(list(expected.values()))
    assert seen["jobs"][1, told.SHARES] == 1
    assert seen["machines"][0].tolist() == pytest.approx(
        [1, 1, np.log(5), np.log(33), 0, 0, 0, 1, 2.48, 1]
    )
    # At 1 s job 2, two GPUs, comes while jobs 0 and 1 run.
    seen = env.step(first_come_first_fit(env))[0][PLACEMENT]
    assert seen["job_mask"].tolist() == [True, False, False, False]
    assert not seen["jobs"][1:].any()
    assert seen["held"].tolist() == [[1], [0], [0], [0]]
    assert seen["jobs"][0, [told.INSTANCES, told.COMM]].tolist() == pytest.approx([np.log(2), 0.5])
    assert seen["jobs"][0, told.USER_SHARE] == pytest.approx(1 / 4)  # job 0 is the same user's
    assert seen["machines"][0, [told.FREE_GPU, told.UTILISATION, told.SHARERS]].tolist() == (
        pytest.approx([2.5 / 4, 1.5 / 4, 1 / 4])
    )
    assert seen["machines"][0, told.JOBS] == pytest.approx(np.log(3))
    assert seen["history_y"][:, 0].tolist() == [1, 0, 0]
    assert seen["history_mask"][:, 0].tolist() == [True, False, False]
    # At 2 s job 3; then job 4, which starts at 10 s when the others are done.
    env.step(first_come_first_fit(env))
    seen = env.step(first_come_first_fit(env))[0][ORDERING]
    assert seen["history_t"].tolist() == [0, 8, 9]
    assert seen["history_mask"][:, 0].tolist() == [False, True, True]
    assert seen["jobs"][0, told.WAITED] == pytest.approx(np.log1p(7 / 60))
    assert seen["jobs"][0, told.USER_DONE] == pytest.approx(np.log(3))
    ran = [np.log1p(10 / 60), np.log1p(6 / 60)]
    assert seen["jobs"][0, told.USER_RUN] == pytest.approx(np.mean(ran))


def test_run_times_are_not_given_away() -> None:
    known, unknown = GpuSchedulingEnv(durations="known"), GpuSchedulingEnv()
    one, other = look(known, 3), look(unknown, 3)
    assert one["jobs"][0, told.RUN] > 0
    assert not other["jobs"][:, told.RUN].any()
    one["jobs"][:, told.RUN] = 0
    assert np.array_equal(one["jobs"], other["jobs"])


def test_a_gang_without_room_for_all_fits_nowhere() -> None:
    rows = [(0.0, 5.0, 3, 100, 100, ANY_TYPE, 0.0, 0), (1.0, 5.0, 2, 100, 100, ANY_TYPE, 0.0, 0)]
    rows.append((1.0, 5.0, 1, 100, 100, ANY_TYPE, 0.0, 0))
    env = GpuSchedulingEnv(Given(jobs_of(rows)), **{**TOY, "workload": "pai-like"}, max_queue=3)
    look(env)
    seen = env.step(first_come_first_fit(env))[0][ORDERING]
    assert sorted(seen["held"][:2, 0].tolist()) == [0, 1]
    assert seen["jobs"][:2, told.STARTS].tolist() == seen["held"][:2, 0].tolist()
    assert seen["heeded"].tolist() == [bool(share) for share in seen["held"][:, 0]]


def test_speeds_of_the_past_are_those_that_ran() -> None:
    """Half a GPU next to four others on two GPUs: all are slowed down, and that is seen."""
    half = (0.0, 100.0, 1, 60, 100, ANY_TYPE, 0.0, 0)
    late = (5.0, 1.0, 1, 10, 100, ANY_TYPE, 0.0, 0)
    group = MachineGroup(count=2, gpus=2, gpu="P100", cpus=32)
    values = {**TOY, "workload": "pai-like", "machines": (group,), "interference": True}
    env = GpuSchedulingEnv(Given(jobs_of([half, half, half, late])), **values)
    look(env)
    seen = env.step(first_come_first_fit(env))[0][ORDERING]
    assert seen["history_mask"][0].tolist() == [True, False]
    assert seen["history_y"][0, 0] < 0.76 * 0.95
    assert seen["history_y"][0, 0] == np.float32(env._state.progress[0, 2])  # their RATE


def test_more_jobs_than_rows() -> None:
    """Those that came first are shown; the others start once they are among these."""
    values = {**TOY, "arrivals": "batch", "max_queue": 2}
    env = GpuSchedulingEnv(**values)
    _, infos = env.reset(seed=0)
    assert infos[ORDERING]["hidden"] == 3
    while env.agents:
        _, _, _, _, infos = env.step(at_random(1)(env))
    assert infos[PLACEMENT]["hidden"] == 0
    assert not np.isnan(env.result().finish_s).any()
    assert (env.result().start_s[2:] > 0).all()


def test_jobs_that_never_fit_do_not_keep_the_episode_going() -> None:
    rows = [(0.0, 5.0, 9, 100, 100, ANY_TYPE, 0.0, 0), (1.0, 5.0, 2, 100, 100, ANY_TYPE, 0.0, 0)]
    values = {**TOY, "workload": "pai-like", "oversized": "queue"}
    with warnings.catch_warnings(action="ignore"):
        env = GpuSchedulingEnv(Given(jobs_of(rows)), **values)
        env.reset(seed=0)
    assert len(finish(env, first_come_first_fit)) == 1
    assert np.isnan(env.result().finish_s).tolist() == [True, False]


def test_an_oversized_job_is_refused_before_anything_runs() -> None:
    rows = [(0.0, 5.0, 9, 100, 100, ANY_TYPE, 0.0, 0)]
    with pytest.raises(InputError, match="job 0 asks for 9 x 1 GPU"):
        GpuSchedulingEnv(Given(jobs_of(rows)), **{**TOY, "workload": "pai-like"})


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_are_told_and_survived(wrong: float) -> None:
    env = GpuSchedulingEnv(jobs=20)
    env.reset(seed=2)
    actions = first_come_first_fit(env)
    actions[ORDERING][:] = wrong
    while env.agents:
        _, _, _, _, infos = env.step(actions)
        assert infos[ORDERING]["legal"] is False
    assert not np.isnan(env.result().finish_s).any()


def test_barred_machines_are_legal_and_affinities_that_are_no_numbers_are_not() -> None:
    env = GpuSchedulingEnv(jobs=20)
    env.reset(seed=2)
    actions = first_come_first_fit(env)
    actions[PLACEMENT][:] = -np.inf
    assert env.step(actions)[4][PLACEMENT]["legal"] is True
    actions[PLACEMENT][:] = np.nan
    assert env.step(actions)[4][PLACEMENT]["legal"] is False


def test_wrong_actions_are_named() -> None:
    env = GpuSchedulingEnv(jobs=5, max_queue=4)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step({})
    env.reset(seed=0)
    actions = first_come_first_fit(env)
    with pytest.raises(InputError, match="no action of agent 'placement'"):
        env.step({ORDERING: actions[ORDERING]})
    with pytest.raises(InputError, match=r"of 'placement' has shape \(8,\); expected \(4, 8\)"):
        env.step({**actions, PLACEMENT: np.zeros(8, np.float32)})
    finish(env, first_come_first_fit)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(actions)
    assert env.possible_agents == list(AGENTS)
