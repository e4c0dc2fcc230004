"""The Gaussian process of hidden speeds: its posterior against dense algebra, and its use."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.gpu_scheduling import speed_process
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.baselines import BASELINES
from loadmaster.envs.gpu_scheduling.class_speeds import class_factors
from loadmaster.envs.gpu_scheduling.cluster import Cluster, build_cluster
from loadmaster.envs.gpu_scheduling.episode import build_episode, run_baseline
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.speed_process import (
    ALONE_STD,
    CLASS_STD,
    INDEPENDENT_S,
    MACHINE_STD,
    MEMORY_S,
    RACK_STD,
    begin_process,
)
from loadmaster.envs.gpu_scheduling.state import SimState, new_state

PASSED_S = 300.0
# Machine, class, and log of the relative speed, measured one after the other.
MEASURED = [(0, 3, 0.4), (0, 3, 0.5), (1, 3, -0.2), (4, 1, 0.3), (5, 3, 0.1), (0, 1, 0.6)]


def hidden(**values: Any) -> GpuSchedulingSettings:
    return GpuSchedulingSettings.model_validate({"speeds": "hidden", **values})


@pytest.fixture
def state() -> SimState:
    settings = hidden(jobs=5)
    episode = build_episode(settings, 0)
    state = new_state(settings, *episode)
    begin_process(state, episode.cluster)
    return state


@compiled
def drift(state: SimState, cluster: Cluster, passed_s: float) -> None:
    speed_process.drift_process(state, cluster, passed_s)


@compiled
def observe(state: SimState, cluster: Cluster, row: int, machine: int, measured: float) -> None:
    mean, _ = speed_process.predicted_log(state, cluster, row, machine)
    rack = len(cluster.rack) + cluster.rack[machine]
    own = speed_process._component(state, row, cluster.gpu_type[machine])
    noise = ALONE_STD**2 * INDEPENDENT_S / PASSED_S
    speed_process._condition(state, machine, rack, own, measured - mean, noise)


@compiled
def predict(state: SimState, cluster: Cluster, row: int, machine: int) -> tuple[float, float]:
    return speed_process.predicted_log(state, cluster, row, machine)


def covariance(
    cluster: Cluster, one: tuple[int, int, float], other: tuple[int, int, float]
) -> float:
    """Prior covariance of two log speeds, each of a machine and a class at a time."""
    (machine, kind, when_s), (machine_2, kind_2, when_2_s) = one, other
    types, racks = cluster.gpu_type[[machine, machine_2]], cluster.rack[[machine, machine_2]]
    apart = np.exp(-abs(when_s - when_2_s) / MEMORY_S)
    return float(
        CLASS_STD**2 * (kind == kind_2 and types[0] == types[1])
        + apart * MACHINE_STD**2 * (machine == machine_2)
        + apart * RACK_STD**2 * (racks[0] == racks[1])
    )


def test_filter_is_the_posterior_of_the_gaussian_process(state: SimState) -> None:
    cluster = build_cluster(hidden())
    seen, values = list[tuple[int, int, float]](), list[float]()
    for step, (machine, kind, measured) in enumerate(MEASURED):
        drift(state, cluster, PASSED_S)
        observe(state, cluster, kind, machine, measured)
        seen.append((machine, kind, (step + 1) * PASSED_S))
        values.append(measured)
    now_s = len(MEASURED) * PASSED_S

    def covariances(points: list[tuple[int, int, float]]) -> NDArray[np.float64]:
        return np.array([[covariance(cluster, one, other) for other in seen] for one in points])

    noise = ALONE_STD**2 * INDEPENDENT_S / PASSED_S
    inverse = np.linalg.inv(covariances(seen) + noise * np.eye(len(seen)))
    for machine in range(len(cluster.rack)):
        for kind in (1, 2, 3):
            point = (machine, kind, now_s)
            across = covariances([point])[0]
            mean, variance = predict(state, cluster, kind, machine)
            assert mean == pytest.approx(across @ inverse @ values, abs=1e-9)
            expected = covariance(cluster, point, point) - across @ inverse @ across
            assert variance == pytest.approx(expected, abs=1e-9)


def test_classes_beyond_the_table_are_not_learnt(state: SimState) -> None:
    cluster = build_cluster(hidden())
    state.clock[cols.COMPONENTS] = state.process.shape[1]
    observe(state, cluster, 3, 0, 0.4)
    assert np.all(state.components == cols.NONE)
    mean, variance = predict(state, cluster, 3, 0)
    assert 0 < mean < 0.1  # the share of machine and rack
    assert variance > CLASS_STD**2


@pytest.mark.slow
@pytest.mark.parametrize("job_classes", ["visible", "hidden"])
def test_process_finds_the_speeds_of_classes(job_classes: str) -> None:
    quiet = {"machine_drift": 0, "rack_drift": 0, "interference": False, "stragglers": 0}
    settings = hidden(jobs=200, load=1.0, job_classes=job_classes, **quiet)
    episode = build_episode(settings, 2)
    state = run_baseline(settings, episode, BASELINES["predicted-process-speeds"])
    found, certain = state.components >= 0, list[float]()
    means, variances = state.process[cols.PROCESS_MEAN], np.diag(state.process)
    assert (variances[: state.clock[cols.COMPONENTS]] > 0).all()
    assert found.sum() > 5
    if job_classes == "hidden":
        return
    for number, gpu in enumerate(settings.known_gpu_types.values()):
        for kind, factor in enumerate(np.log(class_factors(gpu))):
            component = state.components[kind, number]
            if component >= 0 and variances[component] < 0.1**2:
                certain.append(abs(means[component] - factor))
    assert len(certain) > 5
    assert max(certain) < 0.2


def test_known_speeds_need_no_process() -> None:
    settings = GpuSchedulingSettings(jobs=5)
    state = new_state(settings, *build_episode(settings, 0))
    assert state.process.size == state.components.size == 0
