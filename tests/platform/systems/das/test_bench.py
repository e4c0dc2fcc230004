"""`loadmaster bench rollouts das`, with a tiny network on toy jobs."""

import pytest

from loadmaster.models.das.compiled import weights_of
from loadmaster.models.das.network import DasNetwork
from loadmaster.models.das.settings import DasSettings
from loadmaster.platform.systems.das import bench as das
from loadmaster.platform.systems.das.training import DasTraining
from tests.platform.cli.one_line import Cli


def test_randomised_heads_are_not_skipped() -> None:
    network = DasNetwork(DasSettings(process=False))
    das.randomise_heads(network)
    measured = weights_of(network)
    assert not measured.ordering.is_linear
    assert not measured.placement.is_linear


@pytest.mark.slow
def test_bench_compares_with_best_size_of_stock_runner(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = DasTraining.model_validate({
        "environment": {"workload": "toy", "preempt": True, "max_queue": 8},
        "network": {"width": 8, "heads": 2, "layers": 1},
    })  # fmt: skip
    tiny = das.BenchSize(
        training, episodes=2, stock=(1, 2), stock_decisions=20, rounds=1, decisions=30,
        clusters=("small",), machines=300, startable=(2,),
    )  # fmt: skip
    monkeypatch.setattr(das, "SIZE", tiny)
    results = cli.json("bench rollouts das")["results"]
    found = {result["name"].removeprefix("das/"): result["value"] for result in results}
    per_s = ("", "greedy/", "vector_engine/envs-2/", "stock_runner/envs-1/", "stock_runner/envs-2/")
    assert list(found) == [
        *(f"rollout/{way}decisions_per_s" for way in per_s),
        *("rollout/times_vector_engine", "rollout/times_stock_runner"),
        *("decision/small/p50_ms", "decision/small/p99_ms"),
        "decision/300-machines/startable-2/cpu_ms",
    ]
    assert all(value > 0 for value in found.values())
    ours, _, batched, *stock, times_batched, times_stock = list(found.values())[:7]
    assert times_batched == pytest.approx(ours / batched)
    assert times_stock == pytest.approx(ours / max(stock))
    assert found["decision/small/p50_ms"] <= found["decision/small/p99_ms"]
