"""The compiled process against torch, both in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.gpu_scheduling.features import MACHINE_FEATURES, SPEED
from loadmaster.envs.gpu_scheduling.observation import Observation
from loadmaster.models.das.compiled_process import (
    ProcessWeights,
    ProcessWorkspace,
    load_history,
    posterior,
    process_weights,
    process_workspace,
)
from loadmaster.models.das.gaussian_process import RandomWalkProcess, read_history
from loadmaster.models.das.heuristic_init import LOG_TAU
from loadmaster.models.das.settings import DasSettings

pytestmark = pytest.mark.slow

PAST = 6


@compiled
def compiled_posterior(
    view: Observation,
    kinds: NDArray[np.float32],
    standard: NDArray[np.float32],
    weights: ProcessWeights,
    work: ProcessWorkspace,
) -> float:
    load_history(view, weights, work)
    return posterior(kinds, view.rack, standard, True, weights, work)


def view_of(machines: int, seen: float, seed: int) -> Observation:
    """Each machine was observed at a share `seen` of the past decisions."""
    rng = np.random.default_rng(seed)
    empty = np.zeros((0, 1), np.float32)
    return Observation(
        jobs=empty,
        job_mask=np.zeros(0, np.bool_),
        heeded=np.zeros(0, np.bool_),
        machines=rng.random((machines, MACHINE_FEATURES)).astype(np.float32),
        held=empty,
        rack_held=empty,
        rack=np.arange(machines) * 2 // machines,
        history_y=rng.random((PAST, machines)).astype(np.float32),
        history_mask=rng.random((PAST, machines)) < seen,
        history_t=(900 * rng.random(PAST)).astype(np.float32),
    )


@pytest.mark.parametrize("machines", [1, 2, 8, 40])
@pytest.mark.parametrize("seen", [0.0, 0.2, 0.7, 1.0])
@pytest.mark.parametrize("kinds", [0, 3])  # 3: machines of so many kinds, eigenvalues coincide
@pytest.mark.parametrize("walk", [0.7, 0.99])
def test_compiled_posterior_equals_torch(
    machines: int, seen: float, kinds: int, walk: float
) -> None:
    settings = DasSettings(tau=4, walk=walk, noise=0.01, gain=2.0, memory_s=300, length=1.5)
    process, view = RandomWalkProcess(settings), view_of(machines, seen, seed=machines)
    rng = np.random.default_rng(7)
    kind = rng.normal(size=(machines, 5)).astype(np.float32)
    if kinds:
        kind = kind[np.arange(machines) % kinds % machines]
    standard = rng.normal(size=machines).astype(np.float32)

    work, weights = process_workspace(machines, PAST), process_weights(process)
    half_log = compiled_posterior(view, np.ascontiguousarray(kind.T), standard, weights, work)

    history = (view.history_y, view.history_mask, view.history_t)
    y, mask, age = (torch.as_tensor(table)[None] for table in history)
    with torch.no_grad():
        expected = process(
            torch.zeros(1, machines),
            torch.as_tensor(view.machines[None, :, SPEED]),
            torch.zeros(1),
            torch.as_tensor(kind)[None],
            torch.as_tensor(view.rack)[None],
            read_history(y, mask, age, settings.tau),
            torch.zeros(1, dtype=torch.long),
        )
        drawn = expected.sample(torch.as_tensor(standard)[None]) - expected.mean
        log_root = expected.entropy() - machines * (1 + LOG_TAU) / 2
    found = work.result.reshape(machines, 2)
    np.testing.assert_allclose(weights.gain * found[:, 0], expected.mean[0], atol=1e-9)
    np.testing.assert_allclose(found[:, 1], drawn[0], atol=1e-9)
    assert half_log == pytest.approx(float(log_root), abs=1e-9)
