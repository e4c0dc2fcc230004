"""The environment: decisions, observations, actions and rewards."""

from typing import Any

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling import features
from loadmaster.envs.gpu_scheduling.actions import ORDERING, PLACEMENT
from loadmaster.envs.gpu_scheduling.decision_state import PUBLISHED
from loadmaster.envs.gpu_scheduling.env import GpuSchedulingEnv
from loadmaster.envs.gpu_scheduling.episode import run_episode
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.state import RATE
from loadmaster.envs.gpu_scheduling.vector_env import GpuSchedulingVectorEnv
from tests.envs.gpu_scheduling import instances
from tests.envs.gpu_scheduling.instances import TOY, env_with, finish, first_come_first_fit, job

pytestmark = pytest.mark.slow


def started(seed: int = 0, **values: Any) -> GpuSchedulingEnv:
    env = GpuSchedulingEnv(**values)
    env.reset(seed=seed)
    return env


def step(env: GpuSchedulingEnv) -> dict[str, Any]:
    return env.step(first_come_first_fit(env.runner))[0][ORDERING]


@pytest.mark.parametrize("backfill", [True, False])
@pytest.mark.parametrize("cluster", ["small", "medium"])
@pytest.mark.parametrize(
    ("baseline", "policy"),
    [
        ("fifo-first-fit", first_come_first_fit),
        ("sjf-consolidate", instances.shortest_consolidated),
    ],
)
def test_heuristic_as_policy_equals_baseline(
    baseline: str, policy: instances.Policy, cluster: str, backfill: bool
) -> None:
    values = {"cluster": cluster, "backfill": backfill, "load": 1.5, "max_queue": 100, "jobs": 100}
    env = started(3, **values)
    finish(env, policy)
    result, expected = env.result(), run_episode(baseline, GpuSchedulingSettings(**values), 3)
    for name in ("start_s", "finish_s", "fee"):
        assert np.array_equal(getattr(result, name), getattr(expected, name))


@pytest.mark.parametrize("preempt", [False, True])
@pytest.mark.parametrize(("jct_weight", "fee_weight"), [(1.0, 1.0), (0.25, 3.0)])
def test_costs_add_up_to_jct_and_fees(jct_weight: float, fee_weight: float, preempt: bool) -> None:
    env = started(5, jobs=60, jct_weight=jct_weight, fee_weight=fee_weight, preempt=preempt)
    rewards = finish(env, instances.at_random(0))
    result = env.result()
    assert (result.preemptions > 0) is preempt
    jct = jct_weight * result.jct_s.mean() / env.scales.jct_s
    fee = fee_weight * result.fee.mean() / env.scales.fee
    assert sum(rewards) == pytest.approx(-60 * (jct + fee), rel=1e-12)


def test_scales_are_means_under_fifo_first_fit() -> None:
    settings, env = GpuSchedulingSettings(jobs=50), started(1, jobs=50)
    results = [run_episode("fifo-first-fit", settings, seed) for seed in range(4)]
    assert env.scales.jct_s == pytest.approx(np.mean([result.jct_s.mean() for result in results]))
    assert env.scales.fee == pytest.approx(np.mean([result.fee.mean() for result in results]))
    assert -3 < np.mean(finish(env, first_come_first_fit)) < -0.3, "a decision costs about one"


@pytest.mark.parametrize(
    ("changed", "rewards"),
    [
        # Jobs 0 to 3 start at their arrivals; job 4 waits from 3 s to 10 s and runs until 18 s.
        ({}, [1, 1, 1, 8 / 15]),
        # All at once: four jobs start, the one of four GPUs waits until 10 s.
        ({"arrivals": "batch", "waiting_penalty": 0.1}, [(4 - 0.1 * 4) / 5, 8 / 18]),
    ],
)
def test_published_reward_of_toy(changed: dict[str, Any], rewards: list[float]) -> None:
    env = started(**{**TOY, **changed}, reward="published")
    assert finish(env, first_come_first_fit) == pytest.approx(rewards)


def test_published_reward_includes_colocation() -> None:
    """Two halves of one P100 keep 1 - (0.4 / 0.34) x 0.21 of their speed, at the same price."""
    halves, group = [job(0, 5, gpu=50)] * 2, instances.machines(1, 1, "P100")
    env = env_with(*halves, machines=(group,), interference=True, reward="published")
    assert finish(env, first_come_first_fit) == pytest.approx([(1 - 0.4 / 0.34 * 0.21) ** 2])


@pytest.mark.parametrize("preempt", [False, True])
def test_published_reward_is_bounded(preempt: bool) -> None:
    env = started(5, jobs=60, reward="published", stragglers=0, preempt=preempt)
    rewards = finish(env, instances.at_random(0))
    assert -0.01 * 32 <= min(rewards) < max(rewards) <= 1
    assert sum(rewards) == pytest.approx(env.runner.decision_state.sums[PUBLISHED])


def test_observation_of_toy() -> None:
    env = GpuSchedulingEnv(**TOY, durations="known", max_queue=4, history=3)
    seen = env.reset(seed=0)[0][ORDERING]
    assert seen["job_mask"].tolist() == seen["heeded"].tolist() == [True, True, False, False]
    assert seen["held"].tolist() == seen["rack_held"].tolist() == [[1], [1], [0], [0]]
    assert not seen["history_mask"].any()
    # INSTANCES, GPUS, CORES, GPU_SHARE, CPU_SHARE, SHARES, COMM, WAITED, STARTS, RUN, USER_SHARE
    demand = [0, np.log(2), np.log(2), 1 / 4, 1 / 32, 0, 0, 0, 1, np.log1p(10 / 60), 0]
    assert seen["jobs"][0, : features.USER_SHARE + 1].tolist() == pytest.approx(demand)
    assert seen["jobs"][1, features.SHARES] == 1
    machine = [1, 1, np.log(5), np.log(33), 0, 0, 0, 1, 2.48, 1]
    assert seen["machines"][0].tolist() == pytest.approx(machine)
    # At 1 s job 2, two GPUs, arrives while jobs 0 and 1 run.
    seen = step(env)
    assert seen["job_mask"].tolist() == [True, False, False, False]
    assert not seen["jobs"][1:].any()
    assert seen["held"].tolist() == [[1], [0], [0], [0]]
    columns = [features.INSTANCES, features.COMM, features.USER_SHARE]  # job 0 is of the same user
    assert seen["jobs"][0, columns].tolist() == pytest.approx([np.log(2), 0.5, 1 / 4])
    columns = [features.FREE_GPU, features.UTILISATION, features.SHARERS, features.JOBS]
    machine = [2.5 / 4, 1.5 / 4, 1 / 4, np.log(3)]
    assert seen["machines"][0, columns].tolist() == pytest.approx(machine)
    assert seen["history_y"][:, 0].tolist() == [1, 0, 0]
    assert seen["history_mask"][:, 0].tolist() == [True, False, False]
    # At 2 s job 3; then job 4, which starts at 10 s when the others are done.
    step(env)
    seen = step(env)
    assert seen["history_t"].tolist() == [0, 8, 9]
    assert seen["history_mask"][:, 0].tolist() == [False, True, True]
    columns = [features.WAITED, features.USER_DONE, features.USER_RUN]
    mean_run = np.mean([np.log1p(10 / 60), np.log1p(6 / 60)])
    expected_job = [np.log1p(7 / 60), np.log(3), mean_run]
    assert seen["jobs"][0, columns].tolist() == pytest.approx(expected_job)


def test_unknown_durations_are_not_observed() -> None:
    known, unknown = (started(3, durations=d).runner.view.jobs for d in ("known", "unknown"))
    assert known[0, features.RUN] > 0
    assert not unknown[:, features.RUN].any()
    known[:, features.RUN] = 0
    assert np.array_equal(known, unknown)


def test_incomplete_gang_fits_nowhere() -> None:
    env = env_with(job(0, 5, instances=3), job(1, 5, instances=2), job(1, 5), max_queue=3)
    seen = step(env)
    assert sorted(seen["held"][:2, 0].tolist()) == [0, 1]
    assert seen["jobs"][:2, features.STARTS].tolist() == seen["held"][:2, 0].tolist()
    assert seen["heeded"].tolist() == [bool(share) for share in seen["held"][:, 0]]


def test_history_has_observed_speeds() -> None:
    """Three jobs with 0.6 GPUs each share the two GPUs of one machine."""
    rows = *([job(0, 100, gpu=60)] * 3), job(5, 1, gpu=10)
    env = env_with(*rows, machines=(instances.machines(2, 2, "P100"),), interference=True)
    seen = step(env)
    assert seen["history_mask"][0].tolist() == [True, False]
    assert seen["history_y"][0, 0] < 0.76 * 0.95
    assert seen["history_y"][0, 0] == np.float32(env.runner.state.progress[0, RATE])


def test_jobs_beyond_max_queue_are_hidden() -> None:
    env = GpuSchedulingEnv(**{**TOY, "arrivals": "batch", "max_queue": 2})
    _, infos = env.reset(seed=0)
    assert infos[ORDERING]["hidden"] == 3
    policy = instances.at_random(1)
    while env.agents:
        _, _, _, _, infos = env.step(policy(env.runner))
    assert infos[PLACEMENT]["hidden"] == 0
    assert not np.isnan(env.result().finish_s).any()
    assert (env.result().start_s[2:] > 0).all()


def test_episode_ends_without_jobs_that_never_fit() -> None:
    env = env_with(job(0, 5, instances=9), job(1, 5, instances=2), oversized="queue")
    assert len(finish(env, first_come_first_fit)) == 1
    assert np.isnan(env.result().finish_s).tolist() == [True, False]


@pytest.mark.parametrize(
    ("agent", "value", "legal"),
    [
        (ORDERING, np.nan, False),
        (ORDERING, np.inf, False),
        (ORDERING, -np.inf, False),
        (PLACEMENT, np.nan, False),
        (PLACEMENT, -np.inf, True),
    ],
)
def test_illegal_actions_are_reported_and_replaced(agent: str, value: float, legal: bool) -> None:
    env = started(2, jobs=20)
    actions = first_come_first_fit(env.runner)
    actions[agent][:] = value
    while env.agents:
        _, _, _, _, infos = env.step(actions)
        assert infos[agent]["legal"] is legal
    assert not np.isnan(env.result().finish_s).any()


def test_missing_and_misshapen_actions_are_refused() -> None:
    env, vector = started(jobs=5, max_queue=4), GpuSchedulingVectorEnv(2, jobs=5, max_queue=4)
    actions = first_come_first_fit(env.runner)
    with pytest.raises(InputError, match="'placement'"):
        env.step({ORDERING: actions[ORDERING]})
    with pytest.raises(InputError, match=r"'placement' .* \(8,\); expected \(4, 8\)"):
        env.step({**actions, PLACEMENT: np.zeros(8, np.float32)})
    vector.reset(seed=0)
    with pytest.raises(InputError, match="'ordering'"):
        vector.step({})
    with pytest.raises(InputError, match=r"\(2, 8\); expected \(2, 4, 8\)"):
        vector.step({ORDERING: np.zeros((2, 4)), PLACEMENT: np.zeros((2, 8))})
