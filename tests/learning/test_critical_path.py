"""The encoder learns critical paths in seconds; `loadmaster bench encoder` trains longer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from loadmaster.platform.bench.encoder import random_dags, train_and_measure


def test_random_dags_have_the_longest_paths() -> None:
    batch, path = random_dags(np.random.default_rng(4), dags=30, depth=5)
    durations = batch.inputs.sum(dim=1)  # the only input
    for row in range(len(path)):
        below = path[batch.child[batch.parent == row]]
        expected = durations[row] + (below.max() if len(below) else 0)
        torch.testing.assert_close(path[row], expected)
        assert batch.height[row] == 0 or len(below) > 0
    assert (batch.height[batch.parent] == batch.height[batch.child] + 1).all()


@pytest.mark.slow
def test_error_falls_within_400_iterations() -> None:
    losses: list[float] = []
    errors = train_and_measure(400, on_iteration=lambda _, loss: losses.append(loss))
    assert np.mean(losses[-50:]) < 0.2 * np.mean(losses[:10])
    assert errors.trained_depth < 0.5 * errors.blind
    assert errors.deeper < 0.8 * errors.blind  # levels it has never seen
