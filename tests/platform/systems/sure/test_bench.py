"""`loadmaster bench rollouts sure`, with a tiny network."""

import pytest

from loadmaster.platform.systems.sure import bench
from loadmaster.platform.systems.sure.training import SureTraining


@pytest.mark.slow
def test_bench_compares_with_stock_runner_and_full_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    training = SureTraining.model_validate({
        "environment": {"history": 20, "minutes": 40},
        "network": {"width": 8, "layers": 2, "snapshots": 3, "neighbours": 1},
    })  # fmt: skip
    tiny = bench.BenchSize(
        training, jobs=("small-1", "small-2"), minutes=20, episodes=2, stock=(1, 2), rounds=1,
        windows=(20, 70), decisions=3, minibatch=6, steps=2,
    )  # fmt: skip
    monkeypatch.setattr(bench, "SIZE", tiny)
    steps = list[str]()
    figures = {figure.name.removeprefix("sure/"): figure for figure in bench.measure(steps.append)}
    rollouts = [
        f"rollout/{job}/{way}"
        for job in ("small-1", "small-2")
        for way in (
            "decisions_per_s", "stock_runner/envs-1/decisions_per_s",
            "stock_runner/envs-2/decisions_per_s", "times_stock_runner",
        )
    ]  # fmt: skip
    decisions = [
        f"decision/small-2/window-{window}/{what}"
        for window in (20, 70)
        for what in ("p50_ms", "p99_ms", "nodes")
    ]
    ways = ("", "without_mutual_information/")
    training_names = [f"training/small-1/{way}step_of_6_decisions_ms" for way in ways]
    assert list(figures) == [*rollouts, *decisions, *training_names]
    assert all(figure.value > 0 for figure in figures.values())
    for window in (20, 70):
        nodes = figures[f"decision/small-2/window-{window}/nodes"]
        assert (nodes.value, nodes.peer) == (13 * 3 * 2, 13 * window)
    ours, *stock, times = (figures[name].value for name in rollouts[:4])
    assert times == pytest.approx(ours / max(stock))
    assert len(steps) == 2 * 3 + 2 + 1
