"""Simulated jobs at a decision, and a bundle that decides as its prior rule."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.envs.stream_scaling.actions import ACT, HOLD
from loadmaster.envs.stream_scaling.episode import build_setup
from loadmaster.envs.stream_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.models.bundle import load_bundle
from loadmaster.models.sure.policy import SurePolicy
from loadmaster.serving.systems.sure.examples import state_of
from loadmaster.serving.systems.sure.schema import SureState
from tests.bundles import make_bundle

NETWORK = {"width": 8, "layers": 2, "snapshots": 4, "neighbours": 2}


def decisions(steps: int, seed: int = 5, **settings: Any) -> Iterator[EpisodeRunner]:
    """An episode with random actions, before each decision; every fourth one acts."""
    chosen = StreamScalingSettings(**settings)
    runner, rng = EpisodeRunner(chosen, build_setup(chosen), seed), np.random.default_rng(seed)
    for step in range(steps):
        yield runner
        action = rng.uniform(-1, 1, 1 + len(runner.parallelism)).astype(np.float32)
        action[0] = HOLD if step % 4 else ACT
        runner.decide(action)


def sent(runner: EpisodeRunner, snapshots: int | None = None) -> SureState:
    """The state after a way as JSON."""
    return SureState.model_validate_json(state_of(runner, snapshots).model_dump_json())


def bundle(folder: Path, **environment: Any) -> Path:
    return make_bundle(folder, system="sure", environment=environment, **NETWORK)


def policy(folder: Path) -> SurePolicy:
    return SurePolicy.from_bundle(load_bundle(folder))
