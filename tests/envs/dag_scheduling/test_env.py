"""The environment and its vector form: observations, padded sizes, horizons; metrics of episodes.

tests/contract compares the two step by step; tests/envs/test_registry.py has refused settings.
"""

import gymnasium
import numpy as np
import pytest

from loadmaster.envs.dag_scheduling import observation as obs
from loadmaster.envs.dag_scheduling.env import DagSchedulingEnv
from loadmaster.envs.dag_scheduling.jobs import equal_tasks
from loadmaster.envs.dag_scheduling.metrics import episode_metrics, ideal_s, job_columns
from loadmaster.envs.dag_scheduling.rollout import EpisodeResult
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.vector_env import DagSchedulingVectorEnv
from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from tests.envs.dag_scheduling.cluster import TOY, Cluster, play_legally, simulate, workload_of

SINGLE, CHAIN, DIAMOND = range(3)  # templates of TOY
SLOW = workload_of([equal_tasks(1, 100_000), equal_tasks(1, 1, 0)])  # one executor: 100 s a job
ACTION = np.array([0, 1])


def test_executor_classes_bound_the_limit_and_must_fit_every_stage() -> None:
    env = DagSchedulingEnv(executor_classes=[{"count": 3}, {"count": 2, "memory": 0.5}])
    allowed = [env.action_space.contains(np.array([0, limit])) for limit in (0, 1, 5, 6)]
    assert allowed == [False, True, True, False]
    workload = workload_of([equal_tasks(1, 1, memory=0.3, cpu=0.5)])
    classes = [{"count": 2, "memory": 0.2}, {"count": 2, "cpu": 0.4}]
    with pytest.raises(InputError, match=r"executor_classes.*0\.5 CPU and 0\.3 memory"):
        DagSchedulingEnv(workload, executor_classes=classes).reset(seed=0)


# Observations.


def test_columns_of_the_toy_diamond_at_the_start() -> None:
    env = DagSchedulingEnv(workload="toy", jobs=1, executors=5)
    observation = env.reset(seed=0)[0]
    while env.result().template[0] != DIAMOND:
        observation = env.reset()[0]
    stages, job = observation["stages"][:4], observation["jobs"][0]
    assert observation["cluster"].tolist() == [1, 4, 4, 5, 5, 0]
    for column, expected in {
        obs.UNASSIGNED: [1, 2, 4, 1],
        obs.UNSTARTED: [1, 2, 4, 1],
        obs.MEAN_S: [1, 2, 1, 1],
        obs.CRITICAL_S: [4, 3, 2, 1],
        obs.HEIGHT: [2, 1, 1, 0],
        obs.RUNNABLE: [1, 0, 0, 0],
        obs.LONGEST_AHEAD_S: [2, 2, 1, 1],
    }.items():
        assert stages[:, column].tolist() == expected, column
    assert observation["edges"][:4].tolist() == [[0, 1], [0, 2], [1, 3], [2, 3]]
    assert job[[obs.EXECUTORS, obs.IS_SOURCE, obs.MIN_LIMIT, obs.AGE_S]].tolist() == [0, 0, 1, 0]
    assert job[[obs.WORK_S, obs.WORK_LEFT_S, obs.UNPLACED]].tolist() == [10, 10, 8]
    assert np.flatnonzero(observation["schedulable"]).tolist() == [0]


def test_missing_estimates_give_the_mean_of_all_tasks() -> None:
    # 2 x 1 + 2 x 4 + 1 x 7 s and 5 x 0.6 s are 20 s in 10 tasks: each is observed as 2 s.
    chain = [equal_tasks(2, 1000), equal_tasks(2, 4000, 0), equal_tasks(1, 7000, 1)]
    workload = workload_of(chain, [equal_tasks(5, 600)])
    cluster = Cluster(workload, [(0, 0), (0, 1)], executors=2, estimates="missing")
    assert cluster.decision()
    stages, jobs = cluster.view.stages, cluster.view.jobs
    assert stages[:4, obs.MEAN_S].tolist() == [2, 2, 2, 2]
    assert stages[:4, obs.CRITICAL_S].tolist() == [6, 4, 2, 2]
    assert stages[:4, obs.LONGEST_AHEAD_S].tolist() == [2, 2, 2, 2]
    assert jobs[:2, [obs.WORK_S, obs.WORK_LEFT_S]].tolist() == [[10, 10], [10, 10]]
    cluster.choose(0, 0, limit=2)
    assert cluster.decision()
    assert jobs[0, [obs.WORK_S, obs.WORK_LEFT_S]].tolist() == [10, 6]  # two tasks have started


def test_missing_estimates_change_only_policies_that_use_them() -> None:
    values = {"executors": 30, "arrivals": "poisson", "jobs": 30, "load": 0.8}
    for policy in ("fifo", "fair", "random", "sjf-cp"):
        one, other = (simulate(policy, 3, estimates=e, **values) for e in ("known", "missing"))
        same = one.completion_s.tolist() == other.completion_s.tolist()
        assert same == (policy != "sjf-cp")
        assert one.arrival_s.tolist() == other.arrival_s.tolist()
        assert one.work_s.tolist() == other.work_s.tolist()  # results have the true work


def test_missing_estimates_hide_all_durations() -> None:
    views = []
    for each_ms in ((2000, 3000, 1000), (1000, 2000, 3000)):
        stages = [equal_tasks(2, ms, *((0,) if i else ())) for i, ms in enumerate(each_ms)]
        env = DagSchedulingEnv(workload_of(stages), jobs=1, executors=4, estimates="missing")
        views.append(env.reset(seed=0)[0])
    for name, table in views[0].items():
        assert np.array_equal(table, views[1][name]), name


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
    single, vector = DagSchedulingEnv(**values), DagSchedulingVectorEnv(1, **values)
    refused = []
    for seed in range(20):
        try:
            expected = single.reset(seed=seed)[0]
        except InputError:
            refused.append(seed)
            with pytest.raises(InputError, match="max_stages=6"):
                vector.reset(seed=[seed])
        else:
            found = vector.reset(seed=[seed])[0]
            for name, table in expected.items():
                np.testing.assert_array_equal(found[name][0], table)
    assert 0 < len(refused) < 20
    with pytest.raises(InputError, match="max_stages=6"):
        vector.reset(seed=refused[:1])
    vector.step(np.zeros((1, 2), np.int64))  # starts the next episode


def test_horizon_truncates_and_rewards_cover_the_waiting_until_then() -> None:
    env = DagSchedulingEnv(arrivals="poisson", horizon_s=300.0, record=True, executors=20)
    for seed in range(10):
        rewards, last = play_legally(env, seed)
        result, end_s = env.result(), last[4]["time_s"]
        assert last[2:4] == (False, True)  # 5,000 s of jobs never end before it
        assert result.end_s == end_s == round(end_s)  # whole seconds
        assert result.trace is not None
        assert (result.trace.start_ms <= 1000 * end_s).all()
        waited = np.fmin(result.completion_s, end_s) - result.arrival_s
        assert rewards.sum() == pytest.approx(-waited[waited > 0].sum())


# Metrics, computed by hand.


def episode(
    arrival_s: list[float], completion_s: list[float], template: list[int], end_s: float
) -> EpisodeResult:
    """Two executors, seven decisions, toy jobs."""
    times, work_s = (np.array(arrival_s), np.array(completion_s)), TOY.bank.work_ms / 1000
    jobs = np.array(template)
    return EpisodeResult("by-hand", 0, *times, jobs, work_s[jobs], end_s, 2, 7, 0, None)


def figures(result: EpisodeResult, **values: object) -> dict[str, float]:
    settings = build_settings(DagSchedulingSettings, {"executors": 2, **values})
    return {metric.name: metric.of(result) for metric in episode_metrics(settings, TOY)}


def test_ideal_time_is_the_larger_bound() -> None:
    # One executor: the work. Two: 4/2, the chain's path of 4, 10/2. A hundred: critical paths.
    assert list(ideal_s(TOY, 1)) == [4, 6, 10]
    assert list(ideal_s(TOY, 2)) == [2, 4, 5]
    assert list(ideal_s(TOY, 100)) == [1, 4, 4]


def test_metrics_and_job_columns_of_a_finished_episode() -> None:
    result = episode([0, 0, 10], [4, 12, 30], [SINGLE, CHAIN, DIAMOND], end_s=30)
    found = figures(result)
    assert list(found) == ["jct", "jct_p95", "makespan", "slowdown", "decisions"]
    assert found["jct"] == (4 + 12 + 20) / 3
    assert found["jct_p95"] == pytest.approx(12 + 0.9 * 8)  # 95% of the way through 4, 12, 20
    assert found["makespan"] == 30
    assert found["slowdown"] == (4 / 2 + 12 / 4 + 20 / 5) / 3
    assert found["decisions"] == 7
    assert next(iter(figures(result, objective="makespan"))) == "makespan"
    columns = job_columns(result, TOY, 2)
    assert list(columns["template"]) == ["single", "chain", "diamond"]
    assert list(columns["jct_s"]) == [4, 12, 20]
    assert list(columns["work_s"]) == [4, 6, 10]
    assert list(columns["slowdown"]) == [2, 3, 4]


def test_horizon_metrics_count_unfinished_jobs() -> None:
    # Ended at 20 s: one finished, one was cut off after 15 s, one would have come at 25 s.
    result = episode([0, 5, 25], [8, np.nan, np.nan], [SINGLE, CHAIN, CHAIN], end_s=20)
    found = figures(result, horizon_s=20, arrivals="poisson")
    assert list(found)[:2] == ["jobs_in_system", "unfinished"]
    assert found["jobs_in_system"] == (8 + 15) / 20
    assert found["unfinished"] == 1
    assert found["jct"] == 8
    assert found["slowdown"] == 8 / 2
    assert "makespan" not in found
    columns = job_columns(result, TOY, 2)
    assert list(columns["template"]) == ["single", "chain"]
    assert np.isnan(columns["jct_s"][1])
    assert list(columns["end_s"]) == [20, 20]


def test_metrics_without_finished_jobs_are_nan() -> None:
    found = figures(episode([0], [np.nan], [SINGLE], 3), horizon_s=3, arrivals="poisson")
    assert np.isnan([found["jct"], found["jct_p95"], found["slowdown"]]).all()
    assert found["jobs_in_system"] == 1


def test_makespan_objective_with_horizon_is_refused() -> None:
    settings = DagSchedulingSettings(objective="makespan", horizon_s=100, arrivals="poisson")
    with pytest.raises(InputError, match="horizon_s"):
        episode_metrics(settings, TOY)
