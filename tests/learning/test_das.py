"""DAS learns where jobs belong: on the fast machine, while there is room."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.envs.gpu_scheduling.episode import run_episode
from loadmaster.envs.settings import build_settings
from loadmaster.platform.systems.das.training import RECIPE, DasTraining
from loadmaster.platform.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("ray_session")

ITERATIONS = 10
SEED = 1
FAST = {"count": 1, "gpus": 4, "gpu": "V100", "cpus": 96}
SLOW = {"count": 1, "gpus": 4, "gpu": "K80", "cpus": 96}  # a fifth of the speed


def training(process: bool) -> DasTraining:
    """On both, the slow one told first; jobs are few, so hardly anybody waits.

    Without an opening all machines are alike to it, so that untrained it takes the slow one.
    """
    return build_settings(
        DasTraining,
        {
            "seed": SEED,
            "environment": {
                "machines": [SLOW, FAST],
                "jobs": 16,
                "load": 0.4,
                "fee_weight": 0.0,
                "oversized": "skip",
            },
            "network": {
                "width": 16,
                "heads": 2,
                "layers": 1,
                "process": process,
                "opening": "nothing",
            },
            "rollouts": {"sequences": 8, "per_sequence": 4, "workers": 0, "keep": 1.0},
            "training": {
                "learning_rate": {"first": 3e-3, "last": 3e-3},
                "epochs": 4,
                "minibatches": 2,
                "scale": "sequence",
                "critic": {"kind": "none"},
            },
            "validation": {"sequences": 16},
        },
    )


@pytest.mark.filterwarnings("ignore:job .* asks for")
@pytest.mark.parametrize("process", [False, True])
def test_jobs_are_sent_where_they_run_faster(process: bool) -> None:
    config = training(process)
    trainer = Trainer(RECIPE, config)
    try:
        untrained = trainer.validate()
        for _ in range(ITERATIONS):
            trainer.step()
        learnt = trainer.validate()
    finally:
        trainer.stop()
    machines = tuple(reversed(config.environment.machines))
    fast_first = config.environment.model_copy(update={"machines": machines})
    best = np.mean(
        [
            run_episode("fifo-first-fit", fast_first, seed).mean_jct_s
            for seed in trainer.validation_seeds
        ]
    )
    assert untrained > 2 * best
    assert learnt < 1.15 * best
