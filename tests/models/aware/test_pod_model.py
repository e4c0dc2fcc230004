"""The model of a plan against simulated steps of that plan."""

import numpy as np
import pytest

from loadmaster.envs.pod_scaling.application_files import load_applications
from loadmaster.envs.pod_scaling.settings import STEP_INTERVALS
from loadmaster.envs.pod_scaling.simulator import advance
from loadmaster.envs.pod_scaling.state import (
    CPU,
    MEMORY,
    PRESERVED,
    R_PEAK_MIB,
    R_USED_MIB,
    REPLICAS,
    S_CPU_USE,
    Floats,
    app_row,
)
from loadmaster.models.aware.pod_model import ESTIMATED_COLUMNS, MEMORY_IO_S, Forecast
from tests.envs.pod_scaling.episodes import set_load, start
from tests.models.aware.parts import model

STEPS = 1500
SPARE = 1.03  # factor of memory in the model, for errors of the estimates


def true_application(name: str) -> Floats:
    (application,) = load_applications(name, None)
    found = np.zeros(ESTIMATED_COLUMNS)
    found[:MEMORY_IO_S] = app_row(application)[:MEMORY_IO_S]
    found[MEMORY_IO_S] = application.io_s
    return found


CASES = [
    ("imageResize+S3Write", 1.0, 2, 10.0, 0.1),
    ("imageResize+S3Write", 0.5, 4, 10.0, 0.2),
    ("matMul", 2.0, 1, 10.0, 0.1),
    ("webServe", 1.0, 1, 0.7, 0.2),
]


@pytest.mark.parametrize(("name", "cores", "replicas", "rate", "sigma"), CASES)
def test_model_equals_simulated_steps(
    name: str, cores: float, replicas: int, rate: float, sigma: float
) -> None:
    """Loads are independent by step; a step with a backlog counts as its own load would."""
    (app,) = load_applications(name, None)
    setup, state = start(
        app, steps=STEPS, initial_replicas=replicas, initial_cpu_m=1000 * cores,
        initial_memory_mib=3072, missing_metrics=0,
    )  # fmt: skip
    rng = np.random.default_rng(1)
    by_step = rate * np.exp(sigma * rng.standard_normal(STEPS + 5)) * 60
    requests = np.floor(by_step[:, None] / STEP_INTERVALS + rng.random((STEPS + 5, 4)))
    set_load(state, requests.ravel().astype(np.int64))
    advance(setup.constants, state, STEP_INTERVALS * STEPS)
    rows, reports = state.outcome[5:STEPS], state.reports[20 : STEP_INTERVALS * STEPS]
    assert state.plan[MEMORY] == 3072
    assert (state.plan[CPU], state.plan[REPLICAS]) == (cores, replicas)
    load, true = Forecast(rate, sigma), true_application(name)
    preserved, use, mean, _, _, full = model(setup.constants, true, load, state.plan)
    assert preserved == pytest.approx(rows[:, PRESERVED].mean(), abs=0.015)
    assert use == pytest.approx(rows[:, S_CPU_USE].mean(), abs=0.01)
    assert mean == pytest.approx(reports[:, R_USED_MIB].mean() / replicas, rel=0.01)
    peaks = reports[:, R_PEAK_MIB]
    assert peaks.max() * SPARE <= full * (1 + 1e-9)
    for share in (0.5, 0.8, 0.95, 0.99):
        mib = float(np.quantile(peaks, share))
        plan = (cores, SPARE * mib, replicas)
        chance = model(setup.constants, true, load, plan)[3]
        assert chance == pytest.approx((peaks > mib).mean(), abs=0.04), share
    assert model(setup.constants, true, load, (cores, full, replicas))[3] == 0


def test_memory_grows_with_the_level_up_to_that_of_all_workers() -> None:
    setup, _ = start()
    true, load = true_application("imageResize"), Forecast(10.0, 0.2)
    levels = [model(setup.constants, true, load, (1.0, 512, 2), level=x) for x in (1, 5, 9, 1e3)]
    needs = [found[4] for found in levels]
    assert needs == sorted(needs)
    assert needs[0] > levels[0][2]  # more than the mean
    assert needs[-1] == pytest.approx(levels[0][5])


def test_a_margin_of_the_latency_lowers_expected_preservation() -> None:
    setup, _ = start()
    true, load = true_application("matMul"), Forecast(6.0, 0.2)
    kept = [model(setup.constants, true, load, (1.0, 512, 2), margin=m)[0] for m in (0.8, 1, 1.5)]
    assert kept[0] >= kept[1] > kept[2]
