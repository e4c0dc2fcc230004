"""`loadmaster bench rollouts aware`, with a tiny network."""

import pytest

from loadmaster.envs.settings import build_settings
from loadmaster.platform.systems.aware import bench
from loadmaster.platform.systems.aware.training import AwareTraining
from tests.models.aware.parts import SMALL


@pytest.mark.slow
def test_bench_compares_with_stock_runner_and_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "environment": {"steps": 10},
        "network": SMALL,
        "training": {"minibatch": 8, "meta_applications": 3, "meta_trajectories": 2},
    }
    tiny = bench.BenchSize(
        build_settings(AwareTraining, values), episodes=2, stock=(1, 2), rounds=1, decisions=5,
        updates=3, steps=2,
    )  # fmt: skip
    monkeypatch.setattr(bench, "SIZE", tiny)
    steps = list[str]()
    figures = {figure.name.removeprefix("aware/"): figure for figure in bench.measure(steps.append)}
    rollouts = [
        "rollout/decisions_per_s", "rollout/stock_runner/envs-1/decisions_per_s",
        "rollout/stock_runner/envs-2/decisions_per_s", "rollout/times_stock_runner",
    ]  # fmt: skip
    training = [
        "training/update_of_8_transitions_ms", "training/meta_update_of_3_applications_ms",
        "training/embedding_ms",
    ]  # fmt: skip
    decisions = ["decision/p50_ms", "decision/p99_ms"]
    assert list(figures) == [*rollouts, *decisions, *training]
    assert all(figure.value > 0 for figure in figures.values())
    ours, *stock, times = (figures[name].value for name in rollouts)
    assert times == pytest.approx(ours / max(stock))
    peer = figures["decision/p50_ms"].peer
    assert peer is not None
    assert peer > 0
    assert len(steps) == 3 + 1 + 1
