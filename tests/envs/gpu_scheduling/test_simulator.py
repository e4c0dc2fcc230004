"""What holds in every schedule, whoever decides, and that undisturbed ones are the textbook's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as given_settings
from hypothesis import strategies as st

from loadmaster.envs.gpu_scheduling.baselines import BASELINES
from loadmaster.envs.gpu_scheduling.episode import Episode, run_episode
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from tests.envs.gpu_scheduling.instances import episodes, play
from tests.envs.gpu_scheduling.ledger import check_schedule
from tests.envs.gpu_scheduling.plain import plain_finish_s

Instance = tuple[GpuSchedulingSettings, Episode]
many = given_settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@many
@given(episodes(disturbed=True), st.sampled_from(sorted(BASELINES)))
def test_the_books_of_every_schedule(instance: Instance, policy: str) -> None:
    settings, episode = instance
    check_schedule(play(policy, settings, episode), episode, settings)


@many
@given(
    episodes(disturbed=False),
    st.sampled_from(("fifo", "sjf")),
    st.sampled_from(("first-fit", "best-fit", "worst-fit", "load-balance")),
)
def test_undisturbed_it_is_the_plain_simulator(
    instance: Instance, ordering: str, placement: str
) -> None:
    settings, episode = instance
    result = play(f"{ordering}-{placement}", settings, episode)
    plain = plain_finish_s(
        episode.cluster, episode.jobs, ordering, placement, backfill=settings.backfill
    )
    assert np.array_equal(result.finish_s, plain)


@pytest.mark.parametrize("policy", sorted(BASELINES))
def test_same_seed_same_result(policy: str) -> None:
    settings = GpuSchedulingSettings(jobs=60)
    one, other = (run_episode(policy, settings, 5) for _ in range(2))
    assert np.array_equal(one.finish_s, other.finish_s)
    assert np.array_equal(one.fee, other.fee)
    assert not np.array_equal(one.finish_s, run_episode(policy, settings, 6).finish_s)
