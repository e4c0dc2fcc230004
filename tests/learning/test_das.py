"""DAS learns to place jobs on the faster machine."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.envs.gpu_scheduling.episode import run_episode
from loadmaster.envs.settings import build_settings
from loadmaster.platform.systems.das.training import RECIPE, DasTraining
from loadmaster.platform.training.trainer import Trainer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]

ITERATIONS = 10
SEED = 1
FAST = {"count": 1, "gpus": 4, "gpu": "V100", "cpus": 96}
SLOW = {"count": 1, "gpus": 4, "gpu": "K80", "cpus": 96}  # a fifth of the speed


def training(process: bool) -> DasTraining:
    """Few jobs on both machines, without the heuristic initialisation.

    Untrained, all machines have the same score, so that jobs go to the first one, which is slow.
    """
    return build_settings(
        DasTraining,
        {
            "seed": SEED,
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
