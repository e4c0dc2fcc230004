"""The chosen plan against all plans, and what a change has to gain."""

import numpy as np
import pytest

from loadmaster.envs.pod_scaling.rewards import RESOURCES
from loadmaster.envs.pod_scaling.settings import STEP_INTERVALS
from loadmaster.envs.pod_scaling.state import (
    CPU,
    CPU_S,
    MEMORY,
    PLAN_COLUMNS,
    REPLICAS,
    ROW_COLUMNS,
    Floats,
    SimConstants,
)
from loadmaster.models.aware.plan_choice import SIZES, Margins
from loadmaster.models.aware.pod_model import Forecast
from loadmaster.models.aware.settings import RuleSettings
from tests.envs.pod_scaling.episodes import start
from tests.models.aware.parts import choose, model
from tests.models.aware.test_pod_model import true_application

LEVELS = (5.0, 7.0, 9.0, 12.0)
RULE = Margins(*RuleSettings().margins)


def chosen(
    constants: SimConstants, app: Floats, load: Forecast, margins: Margins, now: Floats
) -> tuple[Floats, float]:
    plan = np.zeros(PLAN_COLUMNS)
    reward = choose(constants, app, load, margins, now, np.zeros(ROW_COLUMNS), plan)
    return plan, reward


def brute_force(
    constants: SimConstants, app: Floats, forecast: Forecast, margins: Margins, now: Floats
) -> tuple[float, Floats]:
    """The best reward less costs, and its plan, over all replicas, sizes and memory limits."""
    low, high = constants.low, constants.high
    load = Forecast(forecast.rate * margins.load, forecast.sigma * margins.spread)
    best, best_plan = -np.inf, now
    for replicas in range(int(low[REPLICAS]), int(high[REPLICAS]) + 1):
        for cores in np.geomspace(low[CPU], high[CPU], SIZES):
            if load.rate * app[CPU_S] > 1.1 * replicas * cores:
                continue
            of_levels = [
                model(constants, app, load, (cores, 1, replicas), margins.latency, level)
                for level in LEVELS
            ]
            preserved, use, mean, _, _, full = of_levels[0]
            for mib in (now[MEMORY], full, *(found[4] for found in of_levels)):
                mib = float(np.clip(mib, low[MEMORY], high[MEMORY]))
                chance = model(constants, app, load, (cores, mib, replicas))[3]
                value = RESOURCES * constants.slo_weight * preserved
                value += constants.use_weight * (use + min(mean / mib, 1.0))
                value -= margins.oom * STEP_INTERVALS * chance
                value -= margins.change * (replicas != now[REPLICAS])
                value -= margins.restart * (mib < now[MEMORY])
                if value > best:
                    best, best_plan = value, np.array([cores, mib, replicas])
    return best, best_plan


@pytest.mark.parametrize(
    ("name", "load", "now"),
    [
        ("imageResize+S3Write", Forecast(10.0, 0.2), (1.0, 900.0, 3.0)),
        ("imageResize+S3Write", Forecast(10.0, 0.05), (0.4, 300.0, 2.0)),
        ("matMul", Forecast(0.5, 0.4), (1.0, 600.0, 1.0)),
        ("mlServe", Forecast(20.0, 0.3), (2.0, 900.0, 9.0)),
        ("webServe", Forecast(3.0, 0.6), (0.2, 256.0, 1.0)),
    ],
)
def test_no_plan_is_better(name: str, load: Forecast, now: tuple[float, ...]) -> None:
    setup, _ = start(max_replicas=10)
    app, before = true_application(name), np.array(now)
    for margins in (RULE, RULE._replace(oom=0.5, change=0.0, restart=0.0)):
        plan, reward = chosen(setup.constants, app, load, margins, before)
        best, best_plan = brute_force(setup.constants, app, load, margins, before)
        cost = margins.change * (plan[REPLICAS] != now[2]) + margins.restart * (plan[1] < now[1])
        assert reward - cost == pytest.approx(best, abs=1e-9)
        np.testing.assert_allclose(plan, best_plan)


def test_a_change_has_to_gain_what_it_costs() -> None:
    setup, _ = start()
    app, load = true_application("imageResize+S3Write"), Forecast(10.0, 0.2)
    now = np.array([0.3, 2000.0, 9.0])
    for column, name in ((REPLICAS, "change"), (MEMORY, "restart")):
        free = RULE._replace(change=0.0, restart=0.0)
        moved, after = chosen(setup.constants, app, load, free, now)
        stayed, before = chosen(setup.constants, app, load, free._replace(**{name: 10.0}), now)
        gain = after - before
        assert gain > 0
        assert moved[column] < now[column]
        assert stayed[column] == now[column]
        for factor, expected in ((0.99, moved), (1.01, stayed)):
            margins = free._replace(**{name: factor * gain})
            found, reward = chosen(setup.constants, app, load, margins, now)
            np.testing.assert_array_equal(found, expected)
            assert reward == (after if factor < 1 else before)  # without the cost


def test_an_overload_gets_the_largest_plan() -> None:
    setup, _ = start(max_replicas=3)
    plan, _ = chosen(setup.constants, true_application("mlServe"), Forecast(1e3, 0.1), RULE,
                     np.array([0.2, 800.0, 1.0]))  # fmt: skip
    np.testing.assert_allclose(plan[[CPU, REPLICAS]], setup.constants.high[[CPU, REPLICAS]])


def test_thousands_of_replicas_are_tried_in_steps_and_the_largest_always() -> None:
    setup, _ = start(max_replicas=1000)
    constants, load = setup.constants, Forecast(2000.0, 0.1)
    app, now = true_application("matMul"), np.array([2.048, 800.0, 1.0])
    plan, reward = chosen(constants, app, load, RULE, now)
    assert 100 < plan[REPLICAS] < 1000
    near = []
    for replicas in np.arange(plan[REPLICAS] - 10, plan[REPLICAS] + 11):
        low, high = constants.low.copy(), constants.high.copy()
        low[REPLICAS] = high[REPLICAS] = replicas
        only = constants._replace(low=low, high=high)
        here = np.array([*now[:2], replicas])
        near.append(chosen(only, app, load, RULE, here)[1])
    assert max(near) == pytest.approx(reward, abs=0.01)
    most, _ = chosen(constants, app, Forecast(1e6, 0.1), RULE, now)
    assert most[REPLICAS] == 1000


def test_one_size_of_cpu() -> None:
    setup, _ = start(min_cpu_m=500, max_cpu_m=500)
    plan, _ = chosen(setup.constants, true_application("matMul"), Forecast(5.0, 0.1), RULE,
                     np.array([0.5, 800.0, 1.0]))  # fmt: skip
    assert plan[CPU] == 0.5
    assert plan[REPLICAS] >= 2
