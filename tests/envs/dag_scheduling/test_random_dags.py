"""Generated workloads of random DAGs."""

import numpy as np
import pytest

from loadmaster.envs.dag_scheduling.episode import run_episode
from loadmaster.envs.dag_scheduling.jobs import FIRST, REST
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload, random_dags
from loadmaster.envs.settings import build_settings


def test_alibaba_like_has_the_spread_of_the_trace() -> None:
    bank = random_dags.alibaba_like().bank
    work_s, stages = bank.work_ms / 1000, np.diff(bank.first_stage)
    assert len(work_s) == 600
    assert 0.6 < (bank.tasks == 1).mean() < 0.7  # the trace has 64%
    assert 500 < np.median(work_s) < 3000  # 1,300 s
    assert 5e4 < np.percentile(work_s, 90) < 6e5  # 3.1e5 s
    assert 7 <= np.median(stages) <= 11  # 9
    parents = np.diff(bank.parent_first)
    assert 0.2 < (parents == 0).mean() < 0.35  # 27%
    assert (bank.height.max(), bank.tasks.max()) > (5, 1000)


def test_random_dags_slow_down_and_pay_for_set_up() -> None:
    bank = random_dags.random_dags().bank
    assert len(bank.first_stage) == 301
    mean = np.array(
        [
            [
                bank.durations_ms[start : start + count].mean()
                for start, count in zip(first, counts, strict=True)
            ]
            for first, counts in zip(
                bank.wave_first[:, [REST, FIRST]].reshape(-1, 5),
                bank.wave_count[:, [REST, FIRST]].reshape(-1, 5),
                strict=True,
            )
        ]
    ).reshape(-1, 2, 5)
    slowdown = mean[:, 0, -1] / mean[:, 0, 0]
    assert 1.3 < slowdown.mean() < 2.0  # 200 executors against 5
    assert 1.5 < (mean[:, 1] / mean[:, 0]).mean() < 2.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alibaba-like", "random-dags"])
def test_jobs_are_always_the_same_and_end(name: str) -> None:
    make = getattr(random_dags, name.replace("-", "_"))
    first, again = make.__wrapped__().bank, make.__wrapped__().bank
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    values = {"workload": name, "arrivals": "poisson", "load": 0.8, "jobs": 12}
    settings = build_settings(DagSchedulingSettings, values)
    result = run_episode("srpt-caps", settings, 4, load_workload(settings))
    assert result.mean_jct_s > 0
