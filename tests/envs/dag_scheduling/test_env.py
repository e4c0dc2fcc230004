"""The Gymnasium environment and its vector form: arguments, errors, horizons."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from loadmaster.envs.dag_scheduling import observation as obs
from loadmaster.envs.dag_scheduling.actions import sample_legal_action
from loadmaster.envs.dag_scheduling.env import DagSchedulingEnv
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.vector_env import DagSchedulingVectorEnv
from loadmaster.envs.errors import InputError
from tests.envs.dag_scheduling.cluster import constant, workload_of

GYM_ID = "loadmaster/DagScheduling-v0"
SLOW = workload_of([constant(1, 100_000), constant(1, 1, 0)])  # one executor: 100 s a job


def finish(env: DagSchedulingEnv, observation: Any) -> tuple[float, Any]:
    """Play legally to the end; the return and the last step."""
    rng, total = np.random.default_rng(0), 0.0
    while True:
        step = env.step(sample_legal_action(observation, rng))
        observation, total = step[0], total + step[1]
        if step[2] or step[3]:
            return total, step


# What cannot be.


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"executers": 4}, "unknown setting 'executers'; did you mean 'executors'?"),
        ({"executors": 0}, "setting executors: "),
        ({"moving_delay_s": -1}, "setting moving_delay_s: "),
        ({"interarrival_s": float("nan")}, "setting interarrival_s: "),
        ({"horizon_s": 0}, "setting horizon_s: "),
        ({"arrivals": "burst"}, "setting arrivals: "),
        ({"objective": "fame"}, "setting objective: "),
        ({"executor_classes": [{"count": 0}]}, "setting executor_classes.0.count: "),
        ({"executor_classes": [{"count": 3}], "executors": 5}, "count 3 executors but executors=5"),
        ({"workload": "tpch-lite"}, "unknown workload 'tpch-lite'; did you mean 'tpch-like'?"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(values: dict[str, Any], complaint: str) -> None:
    for make in (
        lambda: DagSchedulingEnv(**values),
        lambda: DagSchedulingVectorEnv(2, **values),
        lambda: gymnasium.make(GYM_ID, **values),
    ):
        with pytest.raises(InputError) as refused:
            make()
        assert complaint in str(refused.value)
        assert "\n" not in str(refused.value)


def test_classes_that_agree_with_the_number_of_executors() -> None:
    env = DagSchedulingEnv(executor_classes=[{"count": 3}, {"count": 2}], executors=5)
    assert env.settings.total_executors == 5
    assert env.action_space.contains(np.array([0, 5]))
    assert not env.action_space.contains(np.array([0, 6]))
    assert not env.action_space.contains(np.array([0, 0]))


def test_settings_written_out_read_back() -> None:
    classes = [{"count": 3}, {"count": 2, "memory": 0.5}]
    settings = DagSchedulingSettings.model_validate({"executor_classes": classes})
    assert settings.executors == 5
    assert DagSchedulingSettings.model_validate(settings.model_dump(mode="json")) == settings


def test_a_stage_that_fits_nowhere_is_refused() -> None:
    workload = workload_of([constant(1, 1, memory=0.3, cpu=0.5)])
    env = DagSchedulingEnv(
        workload, executor_classes=[{"count": 2, "memory": 0.2}, {"count": 2, "cpu": 0.4}]
    )
    with pytest.raises(InputError, match=r"no class offers the 0\.5 CPU and 0\.3 memory"):
        env.reset(seed=0)


TOO_SMALL = [({"max_jobs": 3}, "jobs"), ({"max_stages": 9}, "stages"), ({"max_edges": 9}, "edges")]


@pytest.mark.parametrize(("values", "name"), TOO_SMALL)
def test_past_the_padded_size_the_setting_is_named(values: dict[str, int], name: str) -> None:
    size = values[f"max_{name}"]
    complaint = f"at 0 s more than max_{name}={size} {name} .*: raise the setting max_{name}"
    with pytest.raises(InputError, match=complaint):
        DagSchedulingEnv(jobs=20, **values).reset(seed=0)
    with pytest.raises(InputError, match=complaint):
        DagSchedulingVectorEnv(2, jobs=20, **values).reset(seed=0)


def test_the_padded_size_itself_is_enough() -> None:
    # Two jobs of two stages and one edge each.
    for make in (DagSchedulingEnv, lambda *args, **kw: DagSchedulingVectorEnv(2, *args, **kw)):
        make(SLOW, jobs=2, max_jobs=2, max_stages=4, max_edges=2).reset(seed=0)
        for name, size in (("jobs", 1), ("stages", 3), ("edges", 1)):
            limits = {"max_jobs": 2, "max_stages": 4, "max_edges": 2} | {f"max_{name}": size}
            with pytest.raises(InputError, match=f"max_{name}={size}"):
                make(SLOW, jobs=2, **limits).reset(seed=0)


def test_past_the_padded_size_mid_episode() -> None:
    values = {"arrivals": "poisson", "jobs": 6, "interarrival_s": 1, "executors": 1}
    env = DagSchedulingEnv(SLOW, max_jobs=2, **values)
    env.reset(seed=0)
    with pytest.raises(InputError, match="at 102 s more than max_jobs=2 jobs"):
        env.step(np.array([0, 1]))
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.array([0, 1]))
    env.reset(seed=0)
    assert DagSchedulingEnv(SLOW, max_jobs=7, **values).reset(seed=0)


def test_more_jobs_than_rows_may_be_there_between_decisions() -> None:
    # One task of 100 s holds the only executor while two more jobs arrive; when it is done and
    # the next decision is due, two jobs are left, and two rows are enough.
    workload = workload_of([constant(1, 100_000)])
    values = {"arrivals": "poisson", "jobs": 2, "interarrival_s": 1, "executors": 1}
    single = DagSchedulingEnv(workload, max_jobs=2, **values)
    vector = DagSchedulingVectorEnv(2, workload, max_jobs=2, **values)
    single.reset(seed=3)
    vector.reset(seed=[3, 3])
    over = False
    while not over:
        one, reward, over, _, _ = single.step(np.array([0, 1]))
        both, rewards, overs, _, _ = vector.step(np.array([[0, 1], [0, 1]]))
        assert rewards.tolist() == [reward, reward]
        assert overs.tolist() == [over, over]
        for name, table in one.items():
            assert np.array_equal(both[name], np.stack([table, table])), name


def test_a_vector_starts_afresh_after_an_error() -> None:
    # Two toy jobs have 2 to 8 stages: some seeds' episodes have room, some do not.
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
    vector.step(np.zeros((1, 2), np.int64))  # what could not be seen is over: the next one starts


def test_steps_outside_an_episode() -> None:
    env = DagSchedulingEnv(SLOW, jobs=1, executors=1)
    action = np.array([0, 1])
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.step(action)
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.result()
    observation, _ = env.reset(seed=0)
    _, last = finish(env, observation)
    assert last[2]
    with pytest.raises(gymnasium.error.ResetNeeded, match="over"):
        env.step(action)
    assert env.result().completion_s.tolist() == [102.001]  # still there to be read


def test_a_vector_needs_no_reset_to_begin() -> None:
    vector = DagSchedulingVectorEnv(2, SLOW, jobs=1, executors=1)
    observation, reward, *_ = vector.step(np.zeros((2, 2), np.int64))
    assert reward.tolist() == [0, 0]
    assert observation["schedulable"].any(axis=1).all()


# Options.


def test_views_instead_of_copies() -> None:
    vector = DagSchedulingVectorEnv(1, copy=False)
    observation, _ = vector.reset(seed=0)
    before = observation["cluster"].copy()
    action = sample_legal_action({n: table[0] for n, table in observation.items()}, _rng())
    later = vector.step(action[None])[0]
    assert later["cluster"] is observation["cluster"]
    assert (observation["cluster"] != before).any()


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_results_of_a_vector() -> None:
    values = {"jobs": 2, "executors": 5}
    vector, single = DagSchedulingVectorEnv(2, **values), DagSchedulingEnv(**values)
    observation, _ = vector.reset(seed=[8, 9])
    over = np.zeros(2, bool)
    while not over.any():
        actions = np.array([sample_legal_action(_part(observation, i), _rng()) for i in range(2)])
        observation, _, over, _, _ = vector.step(actions)
    index = int(np.argmax(over))
    first, _ = single.reset(seed=8 + index)
    while True:
        first, _, terminated, _, _ = single.step(sample_legal_action(first, _rng()))
        if terminated:
            break
    np.testing.assert_array_equal(vector.result(index).jct_s, single.result().jct_s)
    assert vector.result(index).seed == 8 + index


def _part(observation: dict[str, Any], index: int) -> dict[str, Any]:
    return {name: table[index] for name, table in observation.items()}


def test_a_schedule_is_recorded_only_on_demand() -> None:
    for record in (False, True):
        env = DagSchedulingEnv(SLOW, jobs=2, record=record)
        finish(env, env.reset(seed=0)[0])
        assert (env.result().trace is not None) == record


def test_the_horizon_truncates() -> None:
    """The rewards then cover what every job has waited until that moment."""
    env = DagSchedulingEnv(arrivals="poisson", horizon_s=300.0, record=True, executors=20)
    truncated = 0
    for seed in range(10):
        total, last = finish(env, env.reset(seed=seed)[0])
        result, end_s = env.result(), last[4]["time_s"]
        assert last[2] != last[3]
        assert result.end_s == end_s
        truncated += last[3]
        if last[3]:
            assert end_s == round(end_s)  # whole seconds
            assert np.isnan(result.completion_s).any()
            assert (result.trace.start_ms <= 1000 * end_s).all()
            assert np.nanmax(result.completion_s, initial=0) <= end_s
        waited = np.minimum(np.nan_to_num(result.completion_s, nan=end_s), end_s) - result.arrival_s
        assert total == pytest.approx(-waited[waited > 0].sum())
    assert truncated == 10  # 5,000 s of jobs never fit into it


def test_the_observation_says_what_there_is() -> None:
    """The toy's diamond, before anything happens."""
    env = DagSchedulingEnv(workload="toy", jobs=1, executors=5)
    observation = env.reset(seed=0)[0]
    while env.result().template[0] != 2:
        observation = env.reset()[0]
    stages, cluster = observation["stages"], observation["cluster"]
    assert cluster.tolist() == [1, 4, 4, 5, 5, 0]
    assert stages[:4, obs.UNASSIGNED].tolist() == [1, 2, 4, 1]
    assert stages[:4, obs.UNSTARTED].tolist() == [1, 2, 4, 1]
    assert stages[:4, obs.MEAN_S].tolist() == [1, 2, 1, 1]
    assert stages[:4, obs.CRITICAL_S].tolist() == [4, 3, 2, 1]
    assert stages[:4, obs.HEIGHT].tolist() == [2, 1, 1, 0]
    assert stages[:4, obs.RUNNABLE].tolist() == [1, 0, 0, 0]
    assert stages[:4, obs.LONGEST_AHEAD_S].tolist() == [2, 2, 1, 1]
    assert observation["edges"][:4].tolist() == [[0, 1], [0, 2], [1, 3], [2, 3]]
    job = observation["jobs"][0]
    assert job[[obs.EXECUTORS, obs.IS_SOURCE, obs.MIN_LIMIT, obs.AGE_S]].tolist() == [
        0,
        0,
        1,
        0,
    ]
    assert job[[obs.WORK_S, obs.WORK_LEFT_S, obs.UNPLACED]].tolist() == [10, 10, 8]
    assert np.flatnonzero(observation["schedulable"]).tolist() == [0]
