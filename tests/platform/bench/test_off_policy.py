"""The benchmark of off-policy training, on small sizes."""

import numpy as np
import pytest

from loadmaster.platform.bench.off_policy import (
    MINIBATCH,
    SAMPLING,
    STATE,
    Effort,
    filled_buffer,
    measure,
)

pytestmark = pytest.mark.slow

SMALL = Effort(
    transitions=5_000,
    draws=10,
    stored=100_000,
    stored_by_peer=20_000,
    sac_steps=20,
    iterations=1,
    turns=1,
)


@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_figures_beside_rllib() -> None:
    steps: list[str] = []
    figures = {figure.name.split("/", 1)[1]: figure for figure in measure(steps.append, SMALL)}
    assert list(figures) == [
        "replay/draws_of_64_per_s/episodes",
        "replay/draws_of_64_per_s/sequences",
        "replay/resident_mb",
        "replay/resident_mb_goal",
        "pendulum/steps_per_s",
    ]
    assert len(steps) == 3
    # A transition of 11 + 3 + 1 float32 takes 61 bytes, an episode one row more.
    assert 5.5 < figures["replay/resident_mb"].value < 8
    ratios = {name: figure.ratio or 0.0 for name, figure in figures.items()}
    assert ratios["replay/draws_of_64_per_s/episodes"] > 50
    assert ratios["replay/draws_of_64_per_s/sequences"] > 20
    assert ratios["replay/resident_mb"] > 2
    assert ratios["pendulum/steps_per_s"] > 5


def test_buffer_of_the_peer_holds_the_transitions() -> None:
    buffer = filled_buffer(500)
    assert buffer.get_num_timesteps() == 500
    episodes = buffer.sample(**SAMPLING["/episodes"])
    assert [len(episode) for episode in episodes] == [1] * MINIBATCH
    assert np.shape(episodes[0].get_observations()) == (2, STATE)
    assert buffer.sample(**SAMPLING["/sequences"])["obs"].shape == (MINIBATCH, 2, STATE)
