"""Estimates against the true parameters of applications, with backlogs and missing reports."""

import numpy as np
import pytest

from loadmaster.envs.pod_scaling.application_files import load_applications
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.pod_scaling.settings import (
    INTERVAL_S,
    STEP_INTERVALS,
    STEP_S,
    WARM_UP_STEPS,
)
from loadmaster.envs.pod_scaling.simulator import advance
from loadmaster.envs.pod_scaling.state import (
    CPU_S,
    MEMORY_MIB,
    QUEUED,
    REQUEST_MIB,
    S_ARRIVED,
    Floats,
    SimConstants,
    SimState,
    app_row,
)
from loadmaster.models.aware.estimates import (
    BIAS,
    ERROR,
    ESTIMATE_COLUMNS,
    IO,
    IO_SEEN,
    LOAD,
    REQUESTS,
    STEPS,
    SURGE,
    VARIANCE,
    WBY,
    W,
    begin_episode,
    blank_application,
    new_estimates,
)
from loadmaster.models.aware.rule import observe_step, scratch
from tests.envs.pod_scaling.episodes import set_load, setting
from tests.models.aware.parts import decisions, policy_of

HOLD = {"initial_replicas": 2, "initial_cpu_m": 1000.0, "initial_memory_mib": 2000.0}


def errors(app: Floats, name: str) -> Floats:
    """Relative errors of CPU time, idle memory and memory of a request."""
    true = np.array(app_row(load_applications(name, None)[0]))
    columns = [CPU_S, MEMORY_MIB, REQUEST_MIB]
    return np.abs(app[columns] / true[columns] - 1)


@pytest.mark.parametrize("name", ["matMul", "imageResize+S3Write", "mlServe", "readFile+json2yaml"])
@pytest.mark.parametrize(("load", "of_request"), [("high", 0.05), ("low", 0.2)])
def test_parameters_are_recovered_after_20_steps(name: str, load: str, of_request: float) -> None:
    (app,), policy = load_applications(name, None), policy_of(size=0)
    settings, setup = setting(app, steps=20, load=load, workload="diurnal-like")
    for seed in (1, 2, 3):
        found = errors(decisions(policy, settings, setup, seed)[-1][0].app, name)
        assert (found <= [0.01, 0.01, of_request]).all(), (seed, found)


def observed(
    constants: SimConstants,
    state: SimState,
    estimates: Floats,
    steps: int,
    app: Floats | None = None,
) -> Floats:
    """The application by the estimates after so many more control steps with the same plan."""
    app, tables = blank_application() if app is None else app, scratch()
    for _ in range(steps):
        observe_step(constants, state, 0.3, estimates, app, tables)
        advance(constants, state, STEP_INTERVALS)
    return app


def test_reports_with_a_backlog_leave_memory_as_it_was() -> None:
    (app,) = load_applications("imageResize+S3Write", None)
    settings, setup = setting(app, steps=40, load_scale=2.0, **HOLD)
    state = EpisodeRunner(settings, setup, 3).episode.state
    rng = np.random.default_rng(0)
    loads = np.repeat(rng.integers(150, 400, 45), STEP_INTERVALS)
    begin = (WARM_UP_STEPS + 20) * STEP_INTERVALS
    loads[begin : begin + 6] = 600  # 2.5 cores of work for 2
    set_load(state, loads)
    estimates = new_estimates()
    before = observed(setup.constants, state, estimates, 20).copy()
    after, longest = before.copy(), 0
    for _ in range(5):
        observed(setup.constants, state, estimates, 1, after)
        longest = max(longest, int(state.requests[QUEUED]))
    assert longest > 100
    np.testing.assert_allclose(after[[MEMORY_MIB, REQUEST_MIB]],
                               before[[MEMORY_MIB, REQUEST_MIB]], rtol=0.02)  # fmt: skip
    settled = observed(setup.constants, state, estimates, 10)
    assert (errors(settled, app.name) <= [0.02, 0.01, 0.05]).all()


@pytest.mark.parametrize("missing", [0.0, 0.6])
def test_missing_reports_only_make_fewer_of_them(missing: float) -> None:
    (app,), policy = load_applications("imageResize+S3Write", None), policy_of(size=0)
    settings, setup = setting(app, steps=20, workload="diurnal-like", missing_metrics=missing)
    found = decisions(policy, settings, setup, 2)[-1][0].app
    assert (errors(found, app.name) <= [0.01, 0.01, 0.05]).all()


def test_steps_before_the_state_are_not_a_load_of_zero() -> None:
    """A state of the service has its last control steps alone."""
    settings, setup = setting(steps=10, **HOLD)
    state = EpisodeRunner(settings, setup, 3).episode.state
    whole, part = new_estimates(), new_estimates()
    observed(setup.constants, state, whole, 1)
    state.outcome[: WARM_UP_STEPS - 1] = 0.0
    state.outcome[WARM_UP_STEPS:] = 0.0
    state.clock[0] = WARM_UP_STEPS * STEP_INTERVALS
    observed(setup.constants, state, part, 1)
    assert (whole[STEPS], part[STEPS]) == (WARM_UP_STEPS, 1)
    assert np.exp(part[LOAD]) == pytest.approx(10, rel=0.01)
    assert part[VARIANCE] == 0.04


def forecast_errors(rates: Floats) -> Floats:
    """Errors of the logarithm of each step's load by the forecast before it."""
    settings, setup = setting(steps=len(rates), **HOLD)
    state = EpisodeRunner(settings, setup, 3).episode.state
    state.outcome[:WARM_UP_STEPS, S_ARRIVED] = STEP_S * rates[0]
    begin = WARM_UP_STEPS * STEP_INTERVALS
    set_load(state, np.repeat(np.round(INTERVAL_S * rates), STEP_INTERVALS), begin)
    estimates, found = new_estimates(), []
    for rate in rates:
        observed(setup.constants, state, estimates, 1)
        found.append(np.log(rate) - estimates[LOAD])
    return np.array(found)


def test_forecast_follows_a_peak_and_is_not_moved_by_noise() -> None:
    """From 2 to 12 requests a second and back in 24 steps; and 12 a second with noise of 16%."""
    peak = np.concatenate([np.full(10, 2.0), 2 + 10 * np.sin(np.pi * np.arange(24) / 24) ** 2])
    error = forecast_errors(peak)
    assert np.sqrt(np.mean(error**2)) < 0.8 * np.sqrt(np.mean(weighted_mean_errors(peak) ** 2))
    noise = np.random.default_rng(0).gamma(40.0, 12.0 / 40.0, 60)
    assert np.std(forecast_errors(noise)[10:]) < 1.15 * np.std(np.log(noise[10:]))


def weighted_mean_errors(rates: Floats) -> Floats:
    """The same by an exponentially weighted mean alone, with the gain of `observed`."""
    level, found = np.log(rates[0]), []
    for value in np.log(rates):
        found.append(value - level)
        level += 0.3 * (value - level)
    return np.array(found)


def test_an_episode_begins_with_the_application_and_without_its_load() -> None:
    estimates = np.arange(1.0, ESTIMATE_COLUMNS + 1)
    begin_episode(estimates)
    forgotten = [STEPS, LOAD, VARIANCE, SURGE, BIAS, ERROR]
    assert not estimates[forgotten].any()
    kept = [REQUESTS, IO, IO_SEEN, *range(W, WBY + 1)]
    assert estimates[kept].all()
