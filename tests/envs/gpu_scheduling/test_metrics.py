"""The figures an episode is judged by, against what the toy's schedule says on paper."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.envs.gpu_scheduling.episode import run_episode
from loadmaster.envs.gpu_scheduling.metrics import episode_metrics, job_columns
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload

TOY = GpuSchedulingSettings.model_validate(
    {
        "workload": "toy",
        "arrivals": "trace",
        "machines": [{"count": 1, "gpus": 4, "gpu": "V100", "cpus": 32}],
        "interference": False,
        "stragglers": 0,
    }
)


def figures(settings: GpuSchedulingSettings, policy: str = "fifo-first-fit") -> dict[str, float]:
    workload = load_workload(settings)
    result = run_episode(policy, settings, 0, workload)
    return {metric.name: metric.of(result) for metric in episode_metrics(settings, workload)}


def test_of_the_toy() -> None:
    """The jobs end at 10, 4, 7, 4 and 18 s, having come at 0, 0, 1, 2 and 3 s."""
    told = figures(TOY)
    assert list(told)[:2] == ["jct", "fee"]
    assert told["jct"] == pytest.approx((10 + 4 + 6 + 2 + 15) / 5)
    assert told["queueing"] == pytest.approx(7 / 5)
    assert told["fee"] == pytest.approx(57 / 5 * 2.48 / 3600)
    assert told["utilisation"] == pytest.approx(57 / (4 * 18))
    assert told["makespan"] == 18
    # All are short jobs, so only the 15 s of the last, over 10 s, are a slow-down.
    assert told["slowdown"] == pytest.approx((4 + 1.5) / 5)
    users = np.array([3.5 / 3, 1])
    assert told["fairness"] == pytest.approx(users.sum() ** 2 / (2 * (users**2).sum()))
    assert "unfinished" not in told


def test_jobs_that_never_fit_are_counted_and_left_out_of_the_means() -> None:
    machines = [{"count": 1, "gpus": 3, "gpu": "V100", "cpus": 32}]
    settings = GpuSchedulingSettings.model_validate(
        {**TOY.model_dump(), "machines": machines, "oversized": "queue"}
    )
    with pytest.warns(UserWarning, match="left in the queue"):
        told = figures(settings)
    assert told["unfinished"] == 1
    assert told["jct"] > 0
    assert all(np.isfinite(value) for value in told.values())


def test_one_row_a_job() -> None:
    result = run_episode("sjf-best-fit", TOY, 0)
    columns = job_columns(result)
    assert {len(column) for column in columns.values()} == {5}
    assert columns["job"].tolist() == [0, 1, 2, 3, 4]
    assert np.allclose(columns["jct_s"], columns["queueing_s"] + result.run_s)
