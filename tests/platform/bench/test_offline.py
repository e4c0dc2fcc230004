"""The benchmark of learning from a log, on small sizes."""

import numpy as np
import pytest

from loadmaster.platform.bench.offline import (
    ALGORITHMS,
    DESCRIPTION,
    Effort,
    behaviour_actions,
    behaviour_log,
    measure,
    run_policy,
)
from loadmaster.platform.bench.pendulum import EPISODE

SMALL = Effort(episodes=3, updates=20, generator_updates=20, tests=2, seeds=1)


@pytest.mark.slow
def test_figures_of_every_algorithm() -> None:
    steps: list[str] = []
    figures = {figure.name: figure for figure in measure(steps.append, SMALL)}
    kinds = ("cost_per_step", "cost_bound", "updates_per_s")
    assert list(figures) == [
        f"offline/pendulum/{name}/{kind}" for name in ALGORITHMS for kind in kinds
    ]
    assert len(steps) == len(ALGORITHMS)
    assert all(figure.value > 0 for figure in figures.values())


def test_log_has_whole_episodes_with_noise() -> None:
    log = behaviour_log(2, seed=1)
    assert log.description == DESCRIPTION
    assert log.starts.tolist() == [0, EPISODE, 2 * EPISODE]
    meant = behaviour_actions(log.observations, None)
    assert 0.1 < np.abs(meant - log.actions).mean() < 0.6
    assert not log.terminated.any()


def test_episodes_repeat_by_seed() -> None:
    one, again = (run_policy(behaviour_actions, 1, seed=3) for _ in range(2))
    assert np.array_equal(one[0].rewards, again[0].rewards)
