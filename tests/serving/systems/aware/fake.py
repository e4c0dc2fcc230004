"""A small policy with the interface of AWARE's, and an endpoint whose bundles hold it."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.pod_scaling.observation import blank_observation, observe
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.envs.pod_scaling.state import CPU, REPLICAS, Floats, SimConstants, SimState
from loadmaster.models.manifest import read_manifest
from loadmaster.models.policy import EpisodeStep, Explanation, Option
from loadmaster.serving.system import Policy
from loadmaster.serving.systems.aware.system import AwareEndpoint, BundlePolicy

REFERENCE = "tests.serving.systems.aware.fake:ENDPOINT"
NUMBERS = 130  # of the memory


class FakeDecision(NamedTuple):
    plan: Floats
    memory: NDArray[np.float32]
    reason: Explanation
    unknown: str = ""
    step: EpisodeStep | None = None


class FakePolicy:
    """Adds a replica at every second decision for an application, and sizes pods by the load."""

    memory_format = "fake-1"
    embedding_format = ""
    trained_in = PodScalingSettings()

    def __init__(self, name: str = "fake", version: str = "1") -> None:
        self.name, self.version = name, version

    def decide(
        self,
        constants: SimConstants,
        state: SimState,
        memory: NDArray[np.float32] | None,
        embedding: NDArray[np.float32] | None = None,
    ) -> FakeDecision:
        view = blank_observation()
        observe(constants, state, view)
        seen = np.zeros(NUMBERS, np.float32) if memory is None else memory
        seen[0] += 1
        seen[1 : 1 + len(view.state)] += 0.1 * view.state
        plan = state.plan  # a policy may change the state that it gets
        plan[REPLICAS] = min(plan[REPLICAS] + seen[0] % 2, constants.high[REPLICAS])
        plan[CPU] = np.clip(2 * view.state[9], constants.low[CPU], constants.high[CPU])
        options = [Option("one more", float(seen[0]), chosen=True)]
        reason = Explanation(f"decision {seen[0]:g}", {"plan": options}, notes=("a note",))
        return FakeDecision(plan, seen, reason)


class FakeEndpoint(AwareEndpoint):
    def policy(self, folder: Path) -> Policy:
        manifest = read_manifest(folder)
        return BundlePolicy(FakePolicy(manifest.name, manifest.version))


ENDPOINT = FakeEndpoint()
