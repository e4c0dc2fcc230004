"""Recorded episodes of stream scaling, each made once, for tests of the replay."""

from functools import cache

import torch

from loadmaster.envs.stream_scaling.episode import Setup, build_setup
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.models.bundle import build_network
from loadmaster.models.sure.network import SureNetwork
from loadmaster.platform.systems.sure.evaluation import LearnedSure
from loadmaster.platform.systems.sure.replay import RecordedEpisode, run

ENVIRONMENT = {"minutes": 180, "history": 30}
SETTINGS = StreamScalingSettings.model_validate(ENVIRONMENT)
SEED = 2


@cache
def setup() -> Setup:
    return build_setup(SETTINGS)


@cache
def untrained_policy() -> LearnedSure:
    """A policy without training: it acts like its prior rule."""
    torch.manual_seed(4)
    network = build_network("sure", {})
    assert isinstance(network, SureNetwork)
    return LearnedSure(network, SETTINGS)


@cache
def recorded(policy: str = "sure") -> RecordedEpisode:
    learned = untrained_policy() if policy == "sure" else None
    return run(policy, learned, SETTINGS, SEED, setup(), recorded=True)
