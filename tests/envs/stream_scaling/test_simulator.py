"""The simulator beside queueing theory and a record-level simulation, and its conservation laws."""

import math
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.settings import build_settings
from loadmaster.envs.stream_scaling.baselines import BASELINES
from loadmaster.envs.stream_scaling.calibration import tuned_baseline
from loadmaster.envs.stream_scaling.episode import build_episode, build_setup
from loadmaster.envs.stream_scaling.jobs import Task, build_job, job_tables
from loadmaster.envs.stream_scaling.metrics import mean_latency_s
from loadmaster.envs.stream_scaling.restart import rescale
from loadmaster.envs.stream_scaling.rollout import run_baseline, run_episode
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.envs.stream_scaling.simulator import advance
from loadmaster.envs.stream_scaling.state import (
    BLOCKED,
    BUFFER_USE,
    BUSY,
    IDLE,
    IN_RATE,
    LAG,
    LATENCY,
    LATENCY_VARIANCE,
    LOST_INSTANCE,
    MINUTE,
    OUT_RATE,
    QUEUED,
    RESTARTS,
    UP,
    new_state,
)
from tests.envs.stream_scaling.reference import (
    SERVICE_MIN,
    fork,
    p99_min,
    record_level,
    result_between,
    sim_constants,
    simulate,
    single,
)

LOADS = [0.5, 0.8, 0.95]


@pytest.mark.parametrize("rho", LOADS)
@pytest.mark.parametrize("variability", [0.0, 1.0, 2.0])
def test_one_instance_is_an_m_g_1_queue(rho: float, variability: float) -> None:
    """Pollaczek and Khinchine: R = s + rho s (1 + cs^2) / 2 / (1 - rho)."""
    _, state = simulate(single(variability), np.full(2000, rho / SERVICE_MIN), 1, sim_constants())
    expected = SERVICE_MIN * (1 + rho * (1 + variability) / 2 / (1 - rho))
    assert state.outcome[-1, LATENCY] == pytest.approx(expected, rel=1e-6)
    if variability == 1.0:  # the time in an M/M/1 queue is exponential
        assert state.outcome[-1, LATENCY_VARIANCE] == pytest.approx(expected**2, rel=1e-6)


@pytest.mark.parametrize("rho", LOADS)
@pytest.mark.parametrize("servers", [2, 4, 8])
def test_shared_queue_is_an_m_m_c_queue(rho: float, servers: int) -> None:
    """Erlang's formula, within 3%."""
    load = np.full(2000, rho * servers / SERVICE_MIN)
    _, state = simulate(single(), load, servers, sim_constants(shared_queue=True))
    offered = rho * servers
    tail = offered**servers / math.factorial(servers) / (1 - rho)
    waits = tail / (sum(offered**k / math.factorial(k) for k in range(servers)) + tail)
    expected = SERVICE_MIN * (1 + waits / servers / (1 - rho))
    assert state.outcome[-1, LATENCY] == pytest.approx(expected, rel=0.03)


def steady(rho: float) -> np.ndarray[Any, Any]:
    return np.full(2000, rho * 4 / SERVICE_MIN)


def overload(length: int, rho: float) -> np.ndarray[Any, Any]:
    rates = np.repeat([0.6, rho, 0.6], [120, length, 150])
    return rates * 4 / SERVICE_MIN


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "first", "runs"),
    [
        *(pytest.param(steady(rho), 500, 20, id=f"steady at {rho}") for rho in LOADS),
        pytest.param(overload(30, 1.3), 60, 100, id="half an hour at 1.3, and catching up"),
        pytest.param(overload(10, 2.0), 60, 100, id="ten minutes at 2, and catching up"),
    ],
)
def test_latency_of_a_record_level_simulation(load: Any, first: int, runs: int) -> None:
    """Mean within 5%, p99 within 10%."""
    tables, state = simulate(fork(), load, 4, sim_constants())
    rng, found = np.random.default_rng(0), []
    for _ in range(runs):
        times, latencies = record_level(fork(), tables, load, 4, rng)
        found.append(latencies[(times >= first) & (times < len(load))])
    expected, result = np.concatenate(found), result_between(state, first, len(load))
    assert mean_latency_s(result) / 60 == pytest.approx(expected.mean(), rel=0.05)
    assert p99_min(result) == pytest.approx(np.quantile(expected, 0.99), rel=0.10)


def balances(tables: Any, state: Any) -> None:
    """Records that arrived at a task are in it or have left it; rates of tasks follow the edges."""
    minute = int(state.clock[MINUTE]) - 1
    arrived = state.arrived[:, minute % state.arrived.shape[1]]
    np.testing.assert_allclose(arrived - state.departed, state.queue.sum(0), atol=1e-6, rtol=1e-9)
    report = state.metrics[minute % len(state.metrics)]
    inflow = np.zeros(len(tables.cap))
    np.add.at(inflow, tables.child, report[tables.parent, OUT_RATE] * tables.ratio)
    inner = tables.source < 0
    np.testing.assert_allclose(report[inner, IN_RATE], inflow[inner], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(report[:, [BUSY, IDLE, BLOCKED]].sum(1), 1.0, atol=1e-5)
    assert (report[:, [BUSY, IDLE, BLOCKED]] >= -1e-6).all()


@pytest.mark.parametrize("job", ["small-1", "medium-1", "large-2"])
@pytest.mark.parametrize("semantics", ["flink", "paper"])
def test_records_are_conserved_in_every_minute(job: str, semantics: str) -> None:
    settings = build_settings(
        StreamScalingSettings,
        {
            "job": job, "semantics": semantics, "metric_noise": 0.0, "minutes": 300,
            "buffer": 30, "skew": 0.05, "load_scale": 1.3,
        },
    )  # fmt: skip
    setup = build_setup(settings)
    episode, rng = build_episode(settings, setup, 3), np.random.default_rng(0)
    state, tables = episode.state, setup.tables
    bounded = (tables.source < 0) & (semantics == "flink")
    for _ in range(300):
        if rng.random() < 0.05:
            plan = rng.integers(1, settings.max_parallelism + 1, len(tables.cap))
            rescale(tables, episode.constants, state, plan)
        advance(tables, episode.constants, state, 1)
        balances(tables, state)
        report = state.metrics[(int(state.clock[MINUTE]) - 1) % len(state.metrics)]
        room = state.parallelism * settings.buffer
        assert (report[bounded, QUEUED] <= room[bounded] * (1 + 1e-5) + 1e-3).all()
        assert (report[bounded, BUFFER_USE] <= 1).all()
    assert state.clock[RESTARTS] > 5


def chain(**changed: Any) -> Any:
    """A source, a slow task behind it."""
    return build_job("chain", [Task("a", 0.1), Task("b", 1.0, ("a",), **changed)])


def test_back_pressure_moves_the_lag_to_the_source() -> None:
    tables, state = simulate(chain(), np.full(60, 90.0), 1, sim_constants(buffer=20))
    report = state.metrics[59 % len(state.metrics)]
    assert report[1, BUSY] == pytest.approx(1.0, abs=1e-3)
    assert report[0, BLOCKED] > 0.5
    assert state.queue[:, 1].sum() <= 20 + 1e-6
    # 90 records a minute arrive, 60 are processed: the lag grows by 30 a minute.
    growth = np.diff(state.outcome[-20:, LAG])
    np.testing.assert_allclose(growth, 30.0, rtol=0.01)
    balances(tables, state)


def test_latency_of_a_stuck_job_grows_with_time() -> None:
    """All instances of a task are lost for twenty minutes."""
    tables = job_tables(chain(), 8, service_min=SERVICE_MIN)
    lost = np.array([[LOST_INSTANCE, 1, 30, 50, 1.0]])
    tables = tables._replace(faults=lost)
    state = new_state(tables, np.full((1, 90), 30.0), np.ones(2, np.int64), 128)
    advance(tables, sim_constants(buffer=20), state, 90)
    latency = state.outcome[:, LATENCY]
    np.testing.assert_allclose(np.diff(latency[32:49]), 1.0, atol=1e-6)
    assert latency[49] > 17
    assert latency[80] < 0.5, "it has caught up"


def test_restart_stops_the_job_and_repeats_since_the_checkpoint() -> None:
    tables = job_tables(chain(), 8, service_min=SERVICE_MIN)
    constants = sim_constants(restart_min=1.5, checkpoint_min=10)
    state = new_state(tables, np.full((1, 60), 30.0), np.full(2, 2, np.int64), 128)
    advance(tables, constants, state, 27)
    before = state.departed[0]
    saved = state.checkpoint[0]
    assert 27 * 30 > before > saved > 9 * 30
    assert rescale(tables, constants, state, np.array([2, 3]))
    assert state.departed[0] == saved
    assert state.queue[:, 1].sum() == 0
    advance(tables, constants, state, 3)
    assert state.outcome[27:30, UP].tolist() == [0.0, 0.5, 1.0]
    assert state.outcome[27, LATENCY] > state.outcome[26, LATENCY] + 5, "records of minutes ago"
    advance(tables, constants, state, 20)
    assert state.outcome[-14, LATENCY] == pytest.approx(state.outcome[26, LATENCY], rel=0.1)
    assert not rescale(tables, constants, state, np.array([2, 3])), "the same plan"
    assert state.clock[RESTARTS] == 1


def test_limits_of_tasks_chains_and_the_job() -> None:
    tasks = [
        Task("a", 1.0, partitions=3),
        Task("b", 1.0, ("a",), chained=True),
        Task("c", 1.0, ("b",)),
    ]
    tables = job_tables(build_job("chained", tasks), 10)
    state = new_state(tables, np.full((1, 10), 1.0), np.ones(3, np.int64), 128)
    plan = np.array([1, 9, 12])
    assert rescale(tables, sim_constants(), state, plan)
    assert plan.tolist() == [3, 3, 10], "a chain has the most of its tasks, within their limits"
    plan = np.array([3, 3, 10])
    rescale(tables, sim_constants(plan_limit=9), state, plan)
    assert plan.tolist() == [3, 3, 3]


def test_uneven_key_groups_make_the_largest_instance_the_bottleneck() -> None:
    """With 8 groups on 5 instances three have two groups, so capacity is that of 4."""
    load = np.full(200, 4.5 / SERVICE_MIN)
    job = build_job("keyed", [Task("a", 1.0, key_groups=8)])
    _, state = simulate(job, load, 5, sim_constants())
    assert state.outcome[-1, LAG] > 1000
    even = build_job("keyed", [Task("a", 1.0, key_groups=10)])
    _, state = simulate(even, load, 5, sim_constants())
    assert state.outcome[-1, LAG] < 100


@pytest.mark.parametrize("name", BASELINES)
def test_rules_run_a_day(name: str) -> None:
    settings = StreamScalingSettings(minutes=1440)
    setup = build_setup(settings)
    one = run_episode(name, settings, 1, setup, record=True)
    again = run_baseline(tuned_baseline(name, settings, setup), settings, setup, 1)
    assert one.reward == again.reward
    assert one.parallelism is not None
    assert (one.parallelism >= 1).all()
    assert (one.parallelism <= settings.max_parallelism).all()
    np.testing.assert_array_equal(one.parallelism.sum(1), one.instances)
    if name == "static":
        assert one.restarts <= 1
    if name == "flink":
        assert 0 < one.restarts < 60


def test_flink_rule_follows_the_load() -> None:
    """Fewer instances at night than by day, and no more latency than a plan for the peak."""
    settings = StreamScalingSettings(workload="clarknet-like", minutes=2880, metric_noise=0.0)
    setup = build_setup(settings)
    flink, static = (
        run_baseline(BASELINES[name], settings, setup, 2) for name in ("flink", "static")
    )
    assert flink.instances.sum() < 0.8 * static.instances.sum()
    assert flink.instances.max() > 1.5 * flink.instances.min()
