"""AWARE's networks: actor and critics of margins, and the encoder of an application."""

from collections.abc import Mapping
from typing import Any

from loadmaster.envs.settings import build_settings
from loadmaster.models.aware.encoder import TrajectoryEncoder
from loadmaster.models.aware.features import FEATURES
from loadmaster.models.aware.settings import MARGINS, AwareSettings
from loadmaster.models.ddpg.network import DdpgNetwork
from loadmaster.models.ddpg.settings import DdpgSettings

STEP_WIDTH = FEATURES + len(MARGINS) + 1  # of a trajectory: features, action, reward


class AwareNetwork(DdpgNetwork):
    """Actor and critics, whose context is the embedding of the application, and its encoder."""

    def __init__(self, aware: AwareSettings) -> None:
        super().__init__(ddpg_settings(aware))
        self.aware = aware
        self.encoder = None
        if aware.context:
            self.encoder = TrajectoryEncoder(aware.encoder, STEP_WIDTH, aware.embedding)


def ddpg_settings(aware: AwareSettings) -> DdpgSettings:
    return DdpgSettings(
        observation=FEATURES,
        action=len(MARGINS),
        actor=aware.actor,
        critic=aware.critic,
        critics=aware.critics,
        context=aware.context,
        critic_context=aware.critic_context,
    )


def build_network(settings: Mapping[str, Any]) -> AwareNetwork:
    """Build a network from the settings of a bundle; an InputError names a wrong one."""
    return AwareNetwork(build_settings(AwareSettings, settings))
