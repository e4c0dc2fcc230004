"""Nothing is lost, doubled or early: on the built-in workload, and on whatever DAGs there are."""

from __future__ import annotations

from typing import Any

import gymnasium
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling import observation as obs
from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.baselines import BASELINES
from loadmaster.envs.dag_scheduling.env import DagSchedulingEnv
from loadmaster.envs.dag_scheduling.episode import run_episode
from loadmaster.envs.dag_scheduling.jobs import Stage
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.state import DONE, HORIZON, NEVER
from loadmaster.envs.dag_scheduling.workloads import load_workload
from tests.envs.dag_scheduling.cluster import Cluster, workload_of
from tests.envs.dag_scheduling.conservation import check_counters, check_schedule, check_view

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
def test_every_baseline_keeps_the_rules(policy: str, values: dict[str, Any]) -> None:
    settings = DagSchedulingSettings(**values)
    workload = load_workload(settings)
    check_schedule(run_episode(policy, settings, 1, workload, record=True), workload, settings)


def play_legally(env: gymnasium.Env[Any, Any], rng: np.random.Generator) -> NDArray[np.float64]:
    """Play the episode that was just reset; the rewards."""
    rewards: list[float] = []
    observation, over = env.reset(seed=1)[0], False
    while not over:
        row = rng.choice(np.flatnonzero(observation["schedulable"]))
        limit = rng.integers(1, env.unwrapped.settings.total_executors + 1)
        observation, reward, terminated, truncated, info = env.step(np.array([row, limit]))
        assert info["legal"]
        rewards.append(reward)
        over = terminated or truncated
    assert terminated
    return np.array(rewards)


@episodes
@pytest.mark.parametrize("objective", ["jct", "makespan"])
def test_random_decisions_keep_the_rules(objective: str, values: dict[str, Any]) -> None:
    env = DagSchedulingEnv(record=True, objective=objective, **values)
    rewards = play_legally(env, np.random.default_rng(0))
    result = env.result()
    check_schedule(result, env.workload, env.settings)
    assert result.decisions == len(rewards)
    assert (rewards <= 0).all()
    paid = result.jct_s.sum() if objective == "jct" else result.makespan_s
    assert rewards.sum() == pytest.approx(-paid, rel=1e-9)
    assert result.end_s == result.makespan_s


# Random clusters: what no workload of ours would ever hold.

durations = st.lists(st.integers(0, 3000) | st.just(0), max_size=3)
offers = st.sampled_from([0.25, 0.5, 1.0])


@st.composite
def stages(draw: st.DrawFn, classes: list[dict[str, Any]]) -> tuple[Stage, ...]:
    """A DAG whose stages stand in any order, each with demands that some class meets."""
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
def clusters(draw: st.DrawFn, horizon: bool = False) -> Cluster:
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
        horizon_ms=draw(st.integers(0, 9000)) if horizon else int(NEVER) - 1,
        executor_classes=classes,
        moving_delay_s=draw(st.sampled_from([0.0, 0.001, 0.5, 2.0])),
        warmup_s=draw(st.sampled_from([0.0, 1.0])),
        interpolation=draw(st.sampled_from(["corrected", "as-published"])),
    )


def decide_at_random(
    cluster: Cluster, rng: np.random.Generator, laziness: float
) -> tuple[int, int] | None:
    """Decide once; the (job, stage) chosen. What it was granted must be what the rule says."""
    view, total = cluster.view, len(cluster.state.executors)
    free = int(cluster.state.left.sum())
    if cluster.may_idle and rng.random() < laziness:
        assert cluster.idle() == free
        return None
    row = int(rng.choice(np.flatnonzero(view.schedulable[:-1])))
    limit = int(rng.integers(1, total + 1))
    job = view.jobs[view.stage_job[row]]
    held = job[obs.EXECUTORS] - (free if job[obs.IS_SOURCE] else 0)
    expected = min(view.stages[row, obs.UNASSIGNED], limit - held, view.stages[row, obs.FITTING])
    legal, granted = cluster.act(row, limit)
    assert legal
    assert granted == max(expected, 1)  # a limit that allows nobody counts as the lowest that does
    return cluster.where(row)


any_seed = st.integers(0, 1 << 32)
lazinesses = st.sampled_from([0.0, 0.3, 0.9])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(clusters(), any_seed, lazinesses)
def test_random_clusters_and_decisions(cluster: Cluster, seed: int, laziness: float) -> None:
    """With idling: whatever is left idle, the episode ends with every job done."""
    rng = np.random.default_rng(seed)
    now_ms, this_round, chosen = 0, -1, set[tuple[int, int] | None]()
    while cluster.decision():
        assert cluster.now_ms >= now_ms
        now_ms = cluster.now_ms
        if cluster.state.clock[cols.ROUND] != this_round:
            this_round, chosen = int(cluster.state.clock[cols.ROUND]), set()
        check_counters(cluster)
        check_view(cluster, chosen)
        chosen.add(decide_at_random(cluster, rng, laziness))
    result = cluster.result()
    assert cluster.state.clock[cols.STATUS] == DONE
    check_schedule(result, cluster.workload, cluster.settings)
    assert cluster.state.clock[cols.JOB_MS] == pytest.approx(1000 * result.jct_s.sum())
    assert result.end_s == result.makespan_s


@settings(max_examples=100, deadline=None, derandomize=True)
@given(clusters(), st.sampled_from(sorted(BASELINES)))
def test_random_clusters_under_every_baseline(cluster: Cluster, policy: str) -> None:
    result = cluster.finish(policy)
    assert cluster.state.clock[cols.STATUS] == DONE
    check_schedule(result, cluster.workload, cluster.settings)
    assert result.end_s == result.makespan_s


@settings(max_examples=60, deadline=None, derandomize=True)
@given(clusters(horizon=True), any_seed, lazinesses)
def test_the_horizon_cuts_exactly(cluster: Cluster, seed: int, laziness: float) -> None:
    rng = np.random.default_rng(seed)
    while cluster.decision():
        decide_at_random(cluster, rng, laziness)
    horizon_ms = int(cluster.state.setup[cols.HORIZON_MS])
    result, trace = cluster.result(), cluster.result().trace
    assert trace is not None
    ended = trace.end_ms <= horizon_ms
    assert (trace.start_ms <= horizon_ms).all()
    assert result.tasks == (ended & (trace.moving == 0)).sum()
    if cluster.state.clock[cols.STATUS] == DONE:
        check_schedule(result, cluster.workload, cluster.settings)
        return
    assert cluster.state.clock[cols.STATUS] == HORIZON
    assert cluster.now_ms == horizon_ms
    in_system_ms = np.minimum(np.nan_to_num(result.completion_s * 1000, nan=horizon_ms), horizon_ms)
    in_system_ms = np.maximum(in_system_ms - result.arrival_s * 1000, 0)
    assert cluster.state.clock[cols.JOB_MS] == pytest.approx(in_system_ms.sum())
    assert np.isnan(result.completion_s).any()
