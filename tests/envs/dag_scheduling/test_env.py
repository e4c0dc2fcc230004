"""The Gymnasium environment and its vector form: arguments, errors, resets, horizons."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from loadmaster.envs.dag_scheduling.actions import sample_legal_action
from loadmaster.envs.dag_scheduling.env import DagSchedulingEnv
from loadmaster.envs.dag_scheduling.jobs import equal_tasks
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.vector_env import DagSchedulingVectorEnv
from loadmaster.envs.errors import InputError
from tests.envs.dag_scheduling.cluster import play_legally, workload_of

SLOW = workload_of([equal_tasks(1, 100_000), equal_tasks(1, 1, 0)])  # one executor: 100 s a job
ACTION = np.array([0, 1])


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"executers": 4}, "'executers'; did you mean 'executors'?"),
        ({"executors": 0}, "setting executors: "),
        ({"interarrival_s": float("nan")}, "setting interarrival_s: "),
        ({"arrivals": "burst"}, "setting arrivals: "),
        ({"executor_classes": [{"count": 0}]}, "setting executor_classes.0.count: "),
        ({"executor_classes": [{"count": 3}], "executors": 5}, "executors=5"),
        ({"workload": "tpch-lite"}, "'tpch-lite'; did you mean 'tpch-like'?"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError) as refused:
        gymnasium.make("loadmaster/DagScheduling-v0", **values)
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)


def test_executor_classes_set_executors_and_dumped_settings_load_again() -> None:
    env = DagSchedulingEnv(executor_classes=[{"count": 3}, {"count": 2, "memory": 0.5}])
    allowed = [env.action_space.contains(np.array([0, limit])) for limit in (0, 1, 5, 6)]
    assert allowed == [False, True, True, False]
    dumped = env.settings.model_dump(mode="json")
    assert dumped["executors"] == 5
    assert DagSchedulingSettings.model_validate(dumped) == env.settings


def test_stage_that_fits_no_class_is_refused() -> None:
    workload = workload_of([equal_tasks(1, 1, memory=0.3, cpu=0.5)])
    env = DagSchedulingEnv(
        workload, executor_classes=[{"count": 2, "memory": 0.2}, {"count": 2, "cpu": 0.4}]
    )
    with pytest.raises(InputError, match=r"executor_classes.*0\.5 CPU and 0\.3 memory"):
        env.reset(seed=0)


# Padded sizes.


@pytest.mark.parametrize("name", ["jobs", "stages", "edges"])
def test_padded_size_is_checked_exactly(name: str) -> None:
    limits = {"max_jobs": 2, "max_stages": 4, "max_edges": 2}  # two jobs, two stages, one edge each
    size = limits[f"max_{name}"] - 1
    for make in (DagSchedulingEnv, lambda *args, **kw: DagSchedulingVectorEnv(2, *args, **kw)):
        make(SLOW, jobs=2, **limits).reset(seed=0)
        with pytest.raises(InputError, match=f"at 0 s .*max_{name}={size}"):
            make(SLOW, jobs=2, **limits | {f"max_{name}": size}).reset(seed=0)


def test_padded_size_exceeded_mid_episode_needs_a_reset() -> None:
    values = {"arrivals": "poisson", "jobs": 6, "interarrival_s": 1, "executors": 1}
    env = DagSchedulingEnv(SLOW, max_jobs=2, **values)
    env.reset(seed=0)
    with pytest.raises(InputError, match=r"at 102 s .*max_jobs=2"):
        env.step(ACTION)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(ACTION)
    env.reset(seed=0)
    assert DagSchedulingEnv(SLOW, max_jobs=7, **values).reset(seed=0)


def test_more_jobs_than_rows_between_decisions_are_allowed() -> None:
    # One task of 100 s holds the only executor while two more jobs arrive; when it is done and
    # the next decision is due, two jobs are left, and two rows are enough.
    workload = workload_of([equal_tasks(1, 100_000)])
    values = {"arrivals": "poisson", "jobs": 2, "interarrival_s": 1, "executors": 1}
    single = DagSchedulingEnv(workload, max_jobs=2, **values)
    vector = DagSchedulingVectorEnv(2, workload, max_jobs=2, **values)
    single.reset(seed=3)
    vector.reset(seed=[3, 3])
    over = False
    while not over:
        one, reward, over, _, _ = single.step(ACTION)
        both, rewards, overs, _, _ = vector.step(np.stack([ACTION, ACTION]))
        assert rewards.tolist() == [reward, reward]
        assert overs.tolist() == [over, over]
        for name, table in one.items():
            assert np.array_equal(both[name], np.stack([table, table])), name


def test_vector_resets_after_an_error() -> None:
    # Two toy jobs have 2 to 8 stages: six rows suffice for the episodes of some seeds.
    values = {"workload": "toy", "jobs": 2, "max_stages": 6}
    single = DagSchedulingEnv(**values)
    fits, too_large = [], -1
    for seed in range(20):
        try:
            fits.append((seed, single.reset(seed=seed)[0]))
        except InputError:
            too_large = seed
    assert fits
    vector = DagSchedulingVectorEnv(1, **values)
    with pytest.raises(InputError, match="max_stages=6"):
        vector.reset(seed=[too_large])
    for seed, expected in fits:
        found = vector.reset(seed=[seed])[0]
        for name, table in expected.items():
            np.testing.assert_array_equal(found[name][0], table)
    with pytest.raises(InputError, match="max_stages=6"):
        vector.reset(seed=[too_large])
    vector.step(np.zeros((1, 2), np.int64))  # starts the next episode


# Episodes.


def test_step_outside_an_episode_is_refused() -> None:
    env = DagSchedulingEnv(SLOW, jobs=1, executors=1)
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.step(ACTION)
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.result()
    assert play_legally(env, seed=0)[1][2]
    with pytest.raises(gymnasium.error.ResetNeeded, match="over"):
        env.step(ACTION)
    assert env.result().completion_s.tolist() == [102.001]


def test_vector_step_before_reset_starts_episodes() -> None:
    vector = DagSchedulingVectorEnv(2, SLOW, jobs=1, executors=1)
    observation, reward, *_ = vector.step(np.zeros((2, 2), np.int64))
    assert reward.tolist() == [0, 0]
    assert observation["schedulable"].any(axis=1).all()


def legal_actions(observation: dict[str, Any]) -> np.ndarray:
    """One action for each environment of a vector."""
    parts = [
        {name: table[i] for name, table in observation.items()}
        for i in range(len(observation["cluster"]))
    ]
    return np.array([sample_legal_action(part, np.random.default_rng(0)) for part in parts])


def test_vector_without_copies_returns_views() -> None:
    vector = DagSchedulingVectorEnv(1, copy=False)
    observation, _ = vector.reset(seed=0)
    before = observation["cluster"].copy()
    later = vector.step(legal_actions(observation))[0]
    assert later["cluster"] is observation["cluster"]
    assert (observation["cluster"] != before).any()


def test_vector_result_equals_that_of_a_single_environment() -> None:
    values = {"jobs": 2, "executors": 5}
    vector, single = DagSchedulingVectorEnv(2, **values), DagSchedulingEnv(**values)
    both, over = vector.reset(seed=[8, 9])[0], False
    single.reset(seed=9)
    while not over:
        actions = legal_actions(both)
        both, *_ = vector.step(actions)
        _, _, over, _, _ = single.step(actions[1])
    np.testing.assert_array_equal(vector.result(1).jct_s, single.result().jct_s)
    assert vector.result(1).seed == 9


def test_horizon_truncates_and_rewards_cover_the_waiting_until_then() -> None:
    env = DagSchedulingEnv(arrivals="poisson", horizon_s=300.0, record=True, executors=20)
    for seed in range(10):
        rewards, last = play_legally(env, seed)
        result, end_s = env.result(), last[4]["time_s"]
        assert last[2:4] == (False, True)  # 5,000 s of jobs never end before it
        assert result.end_s == end_s == round(end_s)  # whole seconds
        assert np.isnan(result.completion_s).any()
        assert result.trace is not None
        assert (result.trace.start_ms <= 1000 * end_s).all()
        assert np.nanmax(result.completion_s, initial=0) <= end_s
        waited = np.minimum(np.nan_to_num(result.completion_s, nan=end_s), end_s) - result.arrival_s
        assert rewards.sum() == pytest.approx(-waited[waited > 0].sum())
