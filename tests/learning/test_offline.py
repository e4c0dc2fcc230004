"""IQL and BCQ learn to hold Pendulum up from the log of a rule that does not."""

import numpy as np
import pytest

from loadmaster.platform.bench.offline import (
    Effort,
    behaviour_actions,
    behaviour_log,
    mean_reward,
    settings_of,
)
from loadmaster.platform.rl.offline import actor_actions, train_offline

LOGGED = 40  # episodes
EPISODES, SEED = 10, 1_000  # of the test


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "updates"), [("iql", 5_000), ("bcq", 2_500)])
def test_policy_from_a_log_is_better_than_the_logged_one(algorithm: str, updates: int) -> None:
    log = behaviour_log(LOGGED, seed=0)
    without_noise = mean_reward(behaviour_actions, EPISODES, SEED)
    assert np.isclose(log.mean_reward, without_noise, rtol=0.2)  # it is not the noise that costs
    effort = Effort(updates=updates, generator_updates=1_000)
    network = train_offline(log, settings_of(algorithm, effort, seed=0))
    assert mean_reward(actor_actions(network), EPISODES, SEED) > 0.6 * log.mean_reward
