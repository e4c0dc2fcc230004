"""DAS's compiled loop against the vector engine."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.gpu_scheduling.rewards import reference_scales
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.models.layers import one_thread
from loadmaster.platform.rl.rollout import INITIAL_DECISIONS, RolloutSpec
from loadmaster.platform.systems.das.rollout import DasEngine
from tests.models.das.builders import NETWORK, module_of
from tests.platform.rl.test_rollout import assert_same

pytestmark = pytest.mark.slow

SETTINGS = GpuSchedulingSettings(jobs=50, load=2.0, preempt=True, max_queue=24, history=6)


@pytest.fixture(autouse=True)
def single_thread() -> Iterator[None]:
    """Threads on small batches wait for each other on a busy machine."""
    with one_thread():
        yield


@pytest.mark.parametrize("changes", [{}, {"reward": "published"}, {"preempt": False}])
def test_recordings_equal_vector_engine(changes: dict[str, Any]) -> None:
    engine, module = DasEngine(SETTINGS.model_copy(update=changes)), module_of(**NETWORK)
    work = [RolloutSpec(3, 11, keep=0.6), RolloutSpec(3, 12), RolloutSpec(8, 13)]
    found, expected = (each.roll_out(module, work) for each in (engine.loop, engine.vector))
    for one, other in zip(found, expected, strict=True):
        assert one.decisions == other.decisions
        assert one.kept.tolist() == other.kept.tolist()
        assert_same(one.observations, other.observations, atol=2e-5)
        assert_same(one.actions, other.actions, atol=2e-5)
        np.testing.assert_allclose(one.log_probability, other.log_probability, rtol=1e-5, atol=2e-4)
        np.testing.assert_allclose(one.rollout.time_s, other.rollout.time_s)
        np.testing.assert_allclose(one.rollout.reward, other.rollout.reward)
        assert one.rollout.end_s == pytest.approx(other.rollout.end_s)
        assert one.figures == pytest.approx(other.figures)
        assert one.last is None


def test_rollouts_extend_the_buffer_and_do_not_depend_on_earlier_ones() -> None:
    settings, module = GpuSchedulingSettings(preempt=True), module_of(**NETWORK)
    work = [RolloutSpec(3, 11), RolloutSpec(4, 12, keep=0.5), RolloutSpec(4, 13)]
    _, beside, other = DasEngine(settings).roll_out(module, work)
    (alone,) = DasEngine(settings).roll_out(module, work[1:2])
    assert alone.decisions > INITIAL_DECISIONS
    assert 0.4 * alone.decisions < len(alone.kept) < 0.6 * alone.decisions
    assert_same(alone.observations, beside.observations)
    np.testing.assert_array_equal(alone.log_probability, beside.log_probability)
    assert other.figures != alone.figures


def test_scores_equal_vector_engine() -> None:
    engine, module = DasEngine(SETTINGS), module_of(**NETWORK)
    scores, expected = (one.judge(module, [0, 5]) for one in (engine, engine.vector))
    for one, other in zip(scores, expected, strict=True):
        assert one.decisions == other.decisions
        assert one.value == pytest.approx(other.value)
        assert one.loss == pytest.approx(other.loss)
    assert scores[0].value != scores[1].value


def test_loss_is_the_negative_total_reward() -> None:
    """The value is the completion time, whatever the weight of the fee."""
    module, found = module_of(**NETWORK), []
    for fee_weight in (0.0, 1.0, 3.0):
        settings = SETTINGS.model_copy(update={"jct_weight": 2.0, "fee_weight": fee_weight})
        found += DasEngine(settings).judge(module, [5])
    assert found[0].value == found[1].value == found[2].value
    fee = found[1].loss - found[0].loss
    assert fee > 0
    assert found[2].loss - found[0].loss == pytest.approx(3 * fee)
    scale = reference_scales(SETTINGS, load_workload(SETTINGS)).jct_s
    assert found[0].loss == pytest.approx(SETTINGS.jobs * 2 * found[0].value / scale)


def test_clusters_with_cells_use_the_vector_engine() -> None:
    """Its log-probabilities have float32 precision, those of the loop do not."""
    engine, work = DasEngine(SETTINGS), [RolloutSpec(3, action_seed=11)]
    for cells, by_torch in (({"exact_up_to": 4, "cells": 4}, True), ({}, False)):
        module = module_of(**NETWORK, **cells)
        (found,), (expected,) = (one.roll_out(module, work) for one in (engine, engine.vector))
        same = np.array_equal(found.log_probability, expected.log_probability)
        assert same == by_torch
