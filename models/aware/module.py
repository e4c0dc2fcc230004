"""AWARE's networks as an RLlib module."""

from loadmaster.envs.settings import build_settings
from loadmaster.models.aware.network import AwareNetwork, ddpg_settings
from loadmaster.models.aware.settings import AwareSettings
from loadmaster.models.ddpg.module import DdpgModule
from loadmaster.models.ddpg.settings import DdpgSettings


class AwareModule(DdpgModule):
    """DDPG's module with an encoder. `model_config`: "network", the fields of AwareSettings."""

    def network_settings(self) -> DdpgSettings:
        self.aware = build_settings(AwareSettings, self.model_config["network"])
        return ddpg_settings(self.aware)

    def make_network(self) -> AwareNetwork:
        return AwareNetwork(self.aware)
