"""Latency against closed forms: M/M/1, M/M/c, processor sharing, CFS, order statistics."""

import math
from dataclasses import replace

import numpy as np
import pytest

from loadmaster.envs.pod_scaling.latency import PERIOD_S, time_alone
from loadmaster.envs.pod_scaling.quantile_table import (
    CORES,
    LEVELS,
    LOADS,
    load_table,
    quantiles,
    queued_quantiles,
    shared_quantiles,
)
from loadmaster.envs.pod_scaling.settings import STEP_INTERVALS
from loadmaster.envs.pod_scaling.simulator import advance
from loadmaster.envs.pod_scaling.state import CPU, P99_S, SETTLED
from tests.envs.pod_scaling.episodes import PLAIN, last_step, set_level, set_load, start

P99 = np.array([math.log(100)])


def simulated_p99(rho: float, cores: float, discipline: str, io_s: float = 0.0) -> float:
    """The p99 of a pod at a load, by the simulator; requests take 10 ms of CPU."""
    app = replace(PLAIN, cpu_s=0.01, io_s=io_s)
    setup, state = start(
        app, initial_replicas=1, initial_cpu_m=1000 * cores, initial_memory_mib=3072,
        discipline=discipline, throttling=False,
    )  # fmt: skip
    set_level(state)
    set_load(state, round(15 * rho * cores / 0.01))
    advance(setup.constants, state, STEP_INTERVALS)
    return float(last_step(state)[P99_S])


@pytest.mark.parametrize("rho", [0.1, 0.35, 0.5, 0.65, 0.8])
@pytest.mark.parametrize("cores", [0.2, 0.5, 1.0])
def test_first_come_first_served_is_an_mm1_queue(rho: float, cores: float) -> None:
    expected = 0.01 / cores * math.log(100) / (1 - rho)
    assert simulated_p99(rho, cores, "fcfs") == pytest.approx(expected, rel=0.01)
    assert simulated_p99(rho, cores, "fcfs", 0.2) == pytest.approx(0.2 + expected, rel=0.01)


@pytest.mark.parametrize(("rho", "k"), [(0.3, 5.6), (0.5, 6.2), (0.7, 7.0), (0.8, 7.4)])
@pytest.mark.parametrize("cores", [0.5, 1.0])
def test_processor_sharing_has_the_measured_factors(rho: float, k: float, cores: float) -> None:
    expected = 0.01 / cores * k / (1 - rho)
    assert simulated_p99(rho, cores, "ps") == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("discipline", ["ps", "fcfs"])
@pytest.mark.parametrize("rho", [0.25, 0.5, 0.68, 0.8])
@pytest.mark.parametrize("cores", [1.4, 2.0])
def test_several_cores(discipline: str, rho: float, cores: float) -> None:
    expected = 0.01 * quantiles(discipline, rho, cores, P99)[0]
    assert simulated_p99(rho, cores, discipline) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    ("pods", "rho", "factor", "error"),
    [(1, 0.6, math.log(100) / 0.4, 0.01), (2, 0.65, 8.17, 0.05), (3, 0.8, 10.54, 0.05),
     (4, 0.65, 6.99, 0.05), (8, 0.8, 8.21, 0.05), (16, 0.9, 9.79, 0.12)],
)  # fmt: skip
def test_less_busy_of_two_pods(pods: int, rho: float, factor: float, error: float) -> None:
    """Factors of the mean CPU time: p99 of 1,000,000 requests that were simulated one by one."""
    app = replace(PLAIN, cpu_s=0.01, io_s=0.0)
    setup, state = start(
        app, initial_replicas=pods, initial_cpu_m=1000.0, initial_memory_mib=3072,
        discipline="fcfs", throttling=False, routing="two-choices",
    )  # fmt: skip
    set_level(state)
    set_load(state, round(15 * rho * pods / 0.01))
    advance(setup.constants, state, STEP_INTERVALS)
    assert last_step(state)[P99_S] == pytest.approx(0.01 * factor, rel=error)


def test_quantiles_of_known_distributions() -> None:
    levels = np.array([0.5, 2.0, P99[0]])
    np.testing.assert_allclose(queued_quantiles(0.6, 1, levels), levels / 0.4, rtol=1e-6)
    # M/M/2 at a load of 0.5: Erlang's C is 1/3, and the wait has the rate of the service.
    time = queued_quantiles(0.5, 2, P99)[0]
    tail = (2 / 3) * math.exp(-time) + (1 / 3) * (1 + time) * math.exp(-time)
    assert tail == pytest.approx(0.01, rel=1e-4)
    # With many cores a request is never held up.
    np.testing.assert_allclose(shared_quantiles(0.1, 16.0, levels), levels, rtol=1e-3)


def test_shipped_table_is_that_of_the_formulas() -> None:
    for discipline in ("ps", "fcfs"):
        table = load_table(discipline)
        assert table.shape == (len(CORES), len(LOADS), len(LEVELS))
        for core, load in ((0, 3), (2, 7), (4, 9)):
            found = (1 - LOADS[load]) * quantiles(
                discipline, LOADS[load], CORES[core], np.array(LEVELS)
            )
            np.testing.assert_allclose(table[core, load], found, rtol=1e-4, atol=1e-6)


def test_throttled_request_alone_has_the_kernels_time() -> None:
    """30 ms of work at 130m: a real kernel takes 143 to 212 ms, 151 in the median."""
    times = [time_alone(0.030, 0.013, phase * PERIOD_S) for phase in np.linspace(0, 1, 101)]
    assert max(times) == pytest.approx(0.204)
    assert np.median(times) == pytest.approx(0.151, rel=0.05)
    assert min(times) >= 0.1
    assert time_alone(0.010, 0.013, 0.05) == 0.010, "within the quota at full speed"
    assert time_alone(0.030, 0.0, 0.05) == 0.030, "without a quota"


def test_throttling_replaces_the_service_time_in_an_idle_pod() -> None:
    """One request an interval: its work of 4.6 times 20 ms at 200m, alone."""
    app = replace(PLAIN, cpu_s=0.02)
    found = {}
    for throttling in (True, False):
        setup, state = start(app, initial_replicas=1, initial_cpu_m=200, throttling=throttling)
        set_level(state)
        set_load(state, 1)
        state.phases[:] = 0.0
        advance(setup.constants, state, STEP_INTERVALS)
        found[throttling] = last_step(state)[P99_S]
    work = 0.02 * math.log(100)
    assert found[False] == pytest.approx(work / 0.2, rel=0.05)
    periods = math.ceil(work / 0.02) - 1
    assert found[True] == pytest.approx(periods * 0.1 + work - periods * 0.02, rel=0.05)


@pytest.mark.parametrize("count", [1, 20, 300, 5000])
def test_observed_p99_is_an_order_statistic(count: int) -> None:
    """The p99 of `count` exponential times: mean and spread over many steps."""
    setup, state = start(steps=4000, load_scale=count / 600)
    rng = np.random.default_rng(0)
    sample = np.sort(rng.exponential(size=(4000, count)), axis=1)
    expected = sample[:, math.ceil(0.99 * count) - 1]
    assert state.levels.mean() == pytest.approx(expected.mean(), rel=0.05)
    assert state.levels.std() == pytest.approx(expected.std(), rel=0.1)
    assert setup.load.rate == 10


def test_step_of_different_intervals_has_the_p99_of_all_requests() -> None:
    """Two intervals with one core, two with a third of it: the p99 of the mixture."""
    app = replace(PLAIN, cpu_s=0.01)
    setup, state = start(
        app, initial_replicas=1, initial_cpu_m=1000, discipline="fcfs", throttling=False
    )
    set_level(state)
    set_load(state, 300)
    advance(setup.constants, state, 2)
    state.plan[CPU], state.clock[SETTLED] = 1 / 3, 0
    advance(setup.constants, state, 2)
    time = last_step(state)[P99_S]
    tail = 0.5 * math.exp(-80 * time) + 0.5 * math.exp(-(100 / 3 - 20) * time)
    assert tail == pytest.approx(0.01, rel=0.02)
