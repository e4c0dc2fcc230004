"""Properties of every schedule, and equality with other simulators.

The figures of the simulator published with Alibaba's PAI trace are those it prints for the public
sample of 3,046 jobs; it has no interference and skips blocked jobs.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as given_settings
from hypothesis import strategies as st

from loadmaster.envs.gpu_scheduling.baselines import BASELINES
from loadmaster.envs.gpu_scheduling.episode import (
    Episode,
    build_episode,
    run_baseline,
    run_episode,
)
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from tests.envs.gpu_scheduling.instances import episodes, play
from tests.envs.gpu_scheduling.reference import check_schedule, plain_finish_s
from tests.traces import needs_traces

pytestmark = pytest.mark.slow
Instance = tuple[GpuSchedulingSettings, Episode]
many = given_settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@many
@given(episodes(disturbed=True), st.sampled_from(sorted(BASELINES)))
def test_schedule_passes_audit(instance: Instance, policy: str) -> None:
    settings, episode = instance
    check_schedule(play(policy, settings, episode), episode, settings)


@many
@given(
    episodes(disturbed=False),
    st.sampled_from(("fifo", "sjf")),
    st.sampled_from(("first-fit", "best-fit", "worst-fit", "load-balance")),
)
def test_without_interference_equals_plain_simulator(
    instance: Instance, ordering: str, placement: str
) -> None:
    settings, episode = instance
    result = play(f"{ordering}-{placement}", settings, episode)
    plain = plain_finish_s(
        episode.cluster, episode.jobs, ordering, placement, backfill=settings.backfill
    )
    assert np.array_equal(result.finish_s, plain)


@pytest.mark.parametrize("policy", sorted(BASELINES))
def test_same_seed_gives_same_result(policy: str) -> None:
    settings = GpuSchedulingSettings(jobs=60)
    one, other = (run_episode(policy, settings, 5) for _ in range(2))
    assert np.array_equal(one.finish_s, other.finish_s)
    assert np.array_equal(one.fee, other.fee)
    assert not np.array_equal(one.finish_s, run_episode(policy, settings, 6).finish_s)


ONE_NODE = {"count": 1, "gpus": 64, "gpu": "V100", "cpus": 1486}
THREE_NODES = {"count": 3, "gpus": 8, "gpu": "V100", "cpus": 96}
PEER_CPU_S = 11.5  # of one run on three nodes


def pai(machines: dict[str, Any], arrivals: str) -> GpuSchedulingSettings:
    values = {"workload": "pai", "arrivals": arrivals, "machines": [machines]}
    return GpuSchedulingSettings.model_validate({**values, "interference": False, "stragglers": 0})


@needs_traces
@pytest.mark.parametrize(
    ("machines", "arrivals", "policy", "printed"),
    [
        (ONE_NODE, "per-minute", "fifo-first-fit", "42503.33"),
        (ONE_NODE, "per-minute", "sjf-first-fit", "14282.10"),
        (THREE_NODES, "trace", "fifo-first-fit", "4902.3011"),
        (THREE_NODES, "trace", "sjf-first-fit", "4868.6960"),
        (THREE_NODES, "trace", "fifo-load-balance", "4957.7193"),
        (THREE_NODES, "trace", "sjf-load-balance", "4946.4439"),
    ],
)
def test_mean_jct_equals_pai_simulator(
    machines: dict[str, Any], arrivals: str, policy: str, printed: str
) -> None:
    result = run_episode(policy, pai(machines, arrivals), seed=0)
    assert len(result.jct_s) == 3046
    digits = len(printed.partition(".")[2])
    assert f"{result.mean_jct_s:.{digits}f}" == printed


@needs_traces
def test_pai_sample_runs_2000_times_faster_than_peer() -> None:
    settings = pai(THREE_NODES, "trace")
    episode = build_episode(settings, seed=0)
    spent = []
    for _ in range(10):
        start = time.process_time()
        run_baseline(settings, *episode[:2], BASELINES["sjf-load-balance"], episode.noise_seed)
        spent.append(time.process_time() - start)
    assert min(spent) < PEER_CPU_S / 2000
