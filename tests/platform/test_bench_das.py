"""The benchmark of DAS's rollouts, on little work."""

from __future__ import annotations

import torch

from loadmaster.envs.settings import build_settings
from loadmaster.models.das.kernel import weights_of
from loadmaster.models.das.network import DasNetwork
from loadmaster.models.das.settings import DasSettings
from loadmaster.platform.bench.das import (
    Effort,
    give_layers_a_say,
    rollout_speeds,
    single_decisions,
)
from loadmaster.platform.training.das import DasTraining

NETWORK = {"width": 8, "heads": 2, "process": False}
LITTLE = Effort(
    training=build_settings(DasTraining, {"environment": {"jobs": 8}, "network": NETWORK}),
    episodes=2,
    stock=(1,),
    steps=10,
    rounds=1,
    decisions=20,
)


def test_layers_that_would_be_skipped_are_measured() -> None:
    torch.manual_seed(0)
    network = DasNetwork(build_settings(DasSettings, NETWORK))
    begun = weights_of(network)
    assert begun.ordering.silent
    assert begun.placement.silent
    give_layers_a_say(network)
    measured = weights_of(network)
    assert not measured.ordering.silent
    assert not measured.placement.silent


def test_all_ways_to_roll_out_are_measured_in_turns() -> None:
    figures = {each.name: each.value for each in rollout_speeds(LITTLE, lambda _: None)}
    speeds = ("", "greedy/", "vector_engine/envs-2/", "stock_runner/envs-1/")
    assert list(figures) == [
        *(f"das/rollout/{way}decisions_per_s" for way in speeds),
        "das/rollout/times_vector_engine",
        "das/rollout/times_stock_runner",
    ]
    ours, stock = (
        figures["das/rollout/decisions_per_s"],
        figures[f"das/rollout/{speeds[3]}decisions_per_s"],
    )
    assert figures["das/rollout/times_stock_runner"] == ours / stock
    assert ours > stock


def test_single_decisions_are_timed() -> None:
    half, most = single_decisions(LITTLE, "small")
    assert (half.name, most.name) == ("das/decision/small/p50_ms", "das/decision/small/p99_ms")
    assert 0 < half.value <= most.value
