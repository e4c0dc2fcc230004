"""Metrics of the toy's schedule, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.envs.gpu_scheduling.episode import run_episode
from loadmaster.envs.gpu_scheduling.metrics import episode_metrics, job_columns
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from tests.envs.gpu_scheduling.instances import TOY

pytestmark = pytest.mark.slow


def figures(settings: GpuSchedulingSettings) -> dict[str, float]:
    workload = load_workload(settings)
    result = run_episode("fifo-first-fit", settings, 0, workload)
    return {metric.name: metric.of(result) for metric in episode_metrics(settings, workload)}


def test_metrics_of_toy() -> None:
    """The jobs arrive at 0, 0, 1, 2 and 3 s and end at 10, 4, 7, 4 and 18 s."""
    values = figures(GpuSchedulingSettings(**TOY))
    assert list(values)[:2] == ["jct", "fee"]
    assert values["jct"] == pytest.approx((10 + 4 + 6 + 2 + 15) / 5)
    assert values["queueing"] == pytest.approx(7 / 5)
    assert values["fee"] == pytest.approx(57 / 5 * 2.48 / 3600)
    assert values["utilisation"] == pytest.approx(57 / (4 * 18))
    assert values["makespan"] == 18
    # Durations count as 10 s at least: only the last job, with 15 s, is slowed down.
    assert values["slowdown"] == pytest.approx((4 + 1.5) / 5)
    users = np.array([3.5 / 3, 1])
    assert values["fairness"] == pytest.approx(users.sum() ** 2 / (2 * (users**2).sum()))
    assert "unfinished" not in values


def test_unfinished_jobs_are_counted_and_excluded_from_means() -> None:
    machines = [{"count": 1, "gpus": 3, "gpu": "V100", "cpus": 32}]
    settings = GpuSchedulingSettings(**{**TOY, "machines": machines, "oversized": "queue"})
    with pytest.warns(UserWarning, match="left in the queue"):
        values = figures(settings)
    assert values["unfinished"] == 1
    assert values["jct"] > 0
    assert all(np.isfinite(value) for value in values.values())


def test_job_columns_have_one_row_per_job() -> None:
    result = run_episode("sjf-best-fit", GpuSchedulingSettings(**TOY), 0)
    columns = job_columns(result)
    assert {len(column) for column in columns.values()} == {5}
    assert columns["job"].tolist() == [0, 1, 2, 3, 4]
    assert np.allclose(columns["jct_s"], columns["queueing_s"] + result.run_s)
