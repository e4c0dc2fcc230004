"""Metrics against figures computed by hand on the toy workload."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.envs.dag_scheduling.metrics import episode_metrics, ideal_s, job_columns
from loadmaster.envs.dag_scheduling.rollout import EpisodeResult
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads.synthetic import toy
from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings

TOY = toy()
SINGLE, CHAIN, DIAMOND = 0, 1, 2


def episode(
    arrival_s: list[float], completion_s: list[float], template: list[int], end_s: float
) -> EpisodeResult:
    templates = np.array(template)
    return EpisodeResult(
        policy="by-hand",
        seed=0,
        arrival_s=np.array(arrival_s),
        completion_s=np.array(completion_s),
        template=templates,
        work_s=TOY.bank.work_ms[templates] / 1000,
        end_s=end_s,
        executors=2,
        decisions=7,
        tasks=0,
        trace=None,
    )


def figures(result: EpisodeResult, **values: object) -> dict[str, float]:
    settings = build_settings(DagSchedulingSettings, {"executors": 2, **values})
    return {metric.name: metric.of(result) for metric in episode_metrics(settings, TOY)}


def test_ideal_time_is_the_larger_bound() -> None:
    # One executor: the work. Two: 4/2, the chain's path of 4, 10/2. A hundred: critical paths.
    assert list(ideal_s(TOY, 1)) == [4, 6, 10]
    assert list(ideal_s(TOY, 2)) == [2, 4, 5]
    assert list(ideal_s(TOY, 100)) == [1, 4, 4]


def test_metrics_and_job_columns_of_a_finished_episode() -> None:
    result = episode([0, 0, 10], [4, 12, 30], [SINGLE, CHAIN, DIAMOND], end_s=30)
    found = figures(result)
    assert list(found) == ["jct", "jct_p95", "makespan", "slowdown", "decisions"]
    assert found["jct"] == (4 + 12 + 20) / 3
    assert found["jct_p95"] == pytest.approx(12 + 0.9 * 8)  # 95% of the way through 4, 12, 20
    assert found["makespan"] == 30
    assert found["slowdown"] == (4 / 2 + 12 / 4 + 20 / 5) / 3
    assert found["decisions"] == 7
    assert next(iter(figures(result, objective="makespan"))) == "makespan"
    columns = job_columns(result, TOY, 2)
    assert list(columns["template"]) == ["single", "chain", "diamond"]
    assert list(columns["jct_s"]) == [4, 12, 20]
    assert list(columns["work_s"]) == [4, 6, 10]
    assert list(columns["slowdown"]) == [2, 3, 4]


def test_horizon_metrics_count_unfinished_jobs() -> None:
    # Ended at 20 s: one finished, one was cut off after 15 s, one would have come at 25 s.
    result = episode([0, 5, 25], [8, np.nan, np.nan], [SINGLE, CHAIN, CHAIN], end_s=20)
    found = figures(result, horizon_s=20, arrivals="poisson")
    assert list(found)[:2] == ["jobs_in_system", "unfinished"]
    assert found["jobs_in_system"] == (8 + 15) / 20
    assert found["unfinished"] == 1
    assert found["jct"] == 8
    assert found["slowdown"] == 8 / 2
    assert "makespan" not in found
    columns = job_columns(result, TOY, 2)
    assert list(columns["template"]) == ["single", "chain"]
    assert np.isnan(columns["jct_s"][1])
    assert list(columns["end_s"]) == [20, 20]


def test_metrics_without_finished_jobs_are_nan() -> None:
    found = figures(episode([0], [np.nan], [SINGLE], 3), horizon_s=3, arrivals="poisson")
    assert np.isnan([found["jct"], found["jct_p95"], found["slowdown"]]).all()
    assert found["jobs_in_system"] == 1


def test_makespan_objective_with_horizon_is_refused() -> None:
    settings = DagSchedulingSettings(objective="makespan", horizon_s=100, arrivals="poisson")
    with pytest.raises(InputError, match="horizon_s"):
        episode_metrics(settings, TOY)
