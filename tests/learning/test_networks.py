"""DAS learns to place jobs on the faster machine; the encoder of DAGs learns critical paths."""

import numpy as np
import pytest
import torch

from loadmaster.envs.gpu_scheduling.episode import run_episode
from loadmaster.envs.settings import build_settings
from loadmaster.platform.bench.encoder import random_dags, train_and_measure
from loadmaster.platform.systems.das.training import RECIPE, DasTraining
from loadmaster.platform.training.trainer import Trainer

ITERATIONS = 10
FAST = {"count": 1, "gpus": 4, "gpu": "V100", "cpus": 96}
SLOW = {"count": 1, "gpus": 4, "gpu": "K80", "cpus": 96}  # a fifth of the speed


def training(process: bool) -> DasTraining:
    """Few jobs on both machines, without the heuristic initialisation.

    Untrained, all machines have the same score, so that jobs go to the first one, which is slow.
    """
    return build_settings(
        DasTraining,
        {
            "seed": 1,
            "environment": {
                "machines": [SLOW, FAST], "jobs": 16, "load": 0.4, "fee_weight": 0.0,
                "oversized": "skip",
            },
            "network": {
                "width": 16, "heads": 2, "layers": 1, "process": process, "opening": "nothing",
            },
            "rollouts": {"sequences": 8, "per_sequence": 4, "workers": 0, "keep": 1.0},
            "training": {
                "learning_rate": {"first": 3e-3, "last": 3e-3},
                "epochs": 4, "minibatches": 2, "scale": "sequence", "critic": {"kind": "none"},
            },
            "validation": {"sequences": 16},
        },
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
@pytest.mark.filterwarnings("ignore:job .* asks for")
@pytest.mark.parametrize("process", [False, True])
def test_jobs_are_placed_on_the_faster_machine(process: bool) -> None:
    config = training(process)
    trainer = Trainer(RECIPE, config)
    try:
        untrained = trainer.validate()
        for _ in range(ITERATIONS):
            trainer.step()
        trained = trainer.validate()
    finally:
        trainer.stop()
    machines = tuple(reversed(config.environment.machines))
    fast_first = config.environment.model_copy(update={"machines": machines})
    runs = (run_episode("fifo-first-fit", fast_first, seed) for seed in trainer.validation_seeds)
    best = np.mean([run.mean_jct_s for run in runs])
    assert untrained > 2 * best
    assert trained < 1.15 * best


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
def test_error_of_critical_paths_falls_within_400_iterations() -> None:
    """`loadmaster bench encoder` trains longer."""
    losses: list[float] = []
    errors = train_and_measure(400, on_iteration=lambda _, loss: losses.append(loss))
    assert np.mean(losses[-50:]) < 0.2 * np.mean(losses[:10])
    assert errors.trained_depth < 0.5 * errors.blind
    assert errors.deeper < 0.8 * errors.blind  # levels it has never seen
