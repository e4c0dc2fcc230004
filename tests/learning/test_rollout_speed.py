"""Multi-agent rollouts beside RLlib's own runner, in environment steps."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from loadmaster.platform.rl.rollout import RolloutSpec
from loadmaster.platform.training.trainer import quiet_rllib
from tests.learning.stock_vaults import stock_runner
from tests.learning.vaults import STEPS, keyholders, make_engine

pytestmark = pytest.mark.slow

ENVIRONMENTS = 64


def per_cpu_second(sample: Callable[[], int], seconds: float = 0.7) -> float:
    """The best of three measurements."""
    sample()
    rates = []
    for _ in range(3):
        began, steps = time.process_time(), 0
        while (passed := time.process_time() - began) < seconds:
            steps += sample()
        rates.append(steps / passed)
    return max(rates)


def test_rollouts_are_several_times_faster_than_rllib(
    record_property: pytest.RecordProperty,
) -> None:
    engine, module = make_engine(), keyholders()
    work = [RolloutSpec(seed, action_seed=seed) for seed in range(ENVIRONMENTS)]
    runner = stock_runner(ENVIRONMENTS)

    def ours() -> int:
        return sum(recording.decisions for recording in engine.roll_out(module, work))

    def theirs() -> int:
        with quiet_rllib():
            episodes = runner.sample(num_timesteps=STEPS * ENVIRONMENTS)
        return sum(episode.env_steps() for episode in episodes)

    fast, stock = per_cpu_second(ours), per_cpu_second(theirs)
    record_property("steps_per_cpu_second", round(fast))
    print(f"steps a CPU-second: {fast:,.0f}, stock {stock:,.0f}")
    assert fast > 10_000
    assert fast > 5 * stock
