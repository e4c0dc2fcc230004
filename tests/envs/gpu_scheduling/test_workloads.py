"""The registry of workloads, and the generator compared with published statistics."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, Jobs
from loadmaster.envs.gpu_scheduling.settings import GPU_TYPES, GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import WORKLOADS, load_workload
from loadmaster.envs.gpu_scheduling.workloads.pai_like import generate
from tests.traces import needs_traces

TYPES = tuple(GPU_TYPES)


@pytest.fixture(scope="module")
def many() -> Jobs:
    return generate(200_000, TYPES, np.random.default_rng(11))


def test_registry_lists_workloads() -> None:
    assert list(WORKLOADS) == ["pai-like", "pai", "philly", "openb", "toy"]
    with pytest.raises(InputError, match="'pai-lite'; did you mean 'pai-like'"):
        load_workload(GpuSchedulingSettings(workload="pai-lite"))


def test_durations_match_published(many: Jobs) -> None:
    assert many.duration_s.mean() == pytest.approx(5223, rel=0.03)
    quantiles = np.quantile(many.duration_s, [0.5, 0.95, 0.99])
    assert quantiles == pytest.approx([594, 24_110, 67_432], rel=0.05)


def test_requests_match_published(many: Jobs) -> None:
    assert many.instances.mean() == pytest.approx(5.0, abs=0.2)
    assert many.instances.max() == 512
    assert many.gpu.mean() == pytest.approx(68, abs=2)
    assert (many.gpu == 100).mean() == pytest.approx(0.451, abs=0.005)
    assert (many.gpu < 100).mean() == pytest.approx(0.525, abs=0.005)
    for name, jobs in {"T4": 25_484, "P100": 5_023, "V100": 2_361}.items():
        share = (many.gpu_type == TYPES.index(name)).mean()
        assert share == pytest.approx(jobs / 82_184, abs=0.003), name
    assert (many.gpu_type == ANY_TYPE).mean() == pytest.approx(49_316 / 82_184, abs=0.005)


def test_hourly_arrivals_match_published(many: Jobs) -> None:
    hours = np.bincount((many.arrival_s // 3600).astype(np.int64))[:-1]
    quartiles = np.quantile(hours, [0.25, 0.5, 0.75])
    assert quartiles == pytest.approx([318, 421, 545], rel=0.06)
    # The published peak is that of 184 hours.
    assert np.quantile(hours, 1 - 1 / 184) == pytest.approx(1350, rel=0.15)
    whole_days = np.log(hours[: len(hours) // 24 * 24])
    turn = np.exp(2j * np.pi * np.arange(len(whole_days)) / 24)
    assert 2 * abs((whole_days * turn).mean()) == pytest.approx(0.15, abs=0.06)  # the daily wave


def test_users_explain_variance_of_durations(many: Jobs) -> None:
    share = np.sort(np.bincount(many.user))[::-1] / len(many.user)
    assert share[[0, 1, 99]] == pytest.approx([0.155, 0.103, 0.0008], rel=0.15)
    rank = np.argsort(np.argsort(many.duration_s)).astype(np.float64)
    count = np.bincount(many.user)
    mean = np.bincount(many.user, rank) / np.maximum(count, 1)
    explained = 1 - ((rank - mean[many.user]) ** 2).mean() / rank.var()
    assert 0.3 < explained < 0.55  # 0.43 in the sample


def test_gangs_and_gpu_fractions_run_longer(many: Jobs) -> None:
    def middle(of: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
        return float(np.median(many.duration_s[of]))

    assert middle(many.instances > 1) > 1.3 * middle(many.instances == 1)
    assert middle(many.gpu < 100) > 1.3 * middle(many.gpu >= 100)


def test_generated_jobs_are_stable_across_releases() -> None:
    jobs = generate(3, TYPES, np.random.default_rng(2024))
    assert jobs.duration_s.tolist() == [1248, 1093, 30]
    assert jobs.instances.tolist() == [1, 16, 1]
    assert jobs.gpu.tolist() == [25, 100, 100]
    assert jobs.cpu.tolist() == [600, 1800, 600]


@needs_traces
def test_generator_resembles_trace(many: Jobs) -> None:
    """Quantiles of jobs of one instance: the sample has no others."""
    workload = load_workload(GpuSchedulingSettings(workload="pai"))
    sample = workload.draw(3046, True, np.random.default_rng(0))
    alone = many.instances == 1
    at = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99]
    ratio = np.quantile(many.duration_s[alone], at) / np.quantile(sample.duration_s, at)
    # The generator's mean and upper quantiles include gangs, so jobs of one instance are a little
    # shorter than in the sample.
    assert np.abs(np.log(ratio)).max() < np.log(1.8)
    assert np.abs(np.log(ratio)).mean() < np.log(1.35)
    for gpu in (25, 50, 100):
        assert (many.gpu == gpu).mean() == pytest.approx((sample.gpu == gpu).mean(), abs=0.02), gpu
    for cpu in (600, 1000, 1800):
        generated = (many.cpu[alone] == cpu).mean()
        assert generated == pytest.approx((sample.cpu == cpu).mean(), abs=0.02), cpu
