"""A toy system: the number of replicas follows the load. Its bundles can misbehave."""

import hashlib
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from loadmaster.envs.errors import InputError
from loadmaster.models.manifest import Manifest, manifest_text, read_manifest
from loadmaster.models.policy import EpisodeStep, Explanation, Learned, Option, Proposal
from loadmaster.serving.decisions.policy_memory import MAX_NUMBERS
from loadmaster.serving.system import Endpoint, Policy, Quantity, Record, State

REFERENCE = "tests.serving.toy:ENDPOINT"
MOST = 100


class ToyState(State):
    load: float = Field(ge=0, le=1e6, description="requests a second")
    replicas: int = Field(ge=0, le=MOST)
    service: str = Field(default="web", max_length=20)


class ToyDecision(Record):
    model_config: ClassVar[Any] = {**Record.model_config, "allow_inf_nan": True}
    replicas: float


class ToyOutcome(Record):
    reward: float


class Follow:
    """One replica for ten requests a second, plus `extra`; `does` selects a misbehaviour."""

    def __init__(self, name: str, version: str, does: str, extra: int) -> None:
        self.name, self.version, self._does, self._extra = name, version, does, extra
        self._calls = 0

    def decide(self, state: ToyState) -> Proposal:
        replicas: float = min(math.ceil(state.load / 10) + self._extra, MOST)
        self._calls += 1
        match self._does:
            case "raises":
                raise RuntimeError("the policy is broken")
            case "hangs":
                time.sleep(30)
            case "is slow":
                time.sleep(0.1)
            case "is slow now and then" if self._calls % 20 == 0:
                time.sleep(0.8)
            case "is slow at first" if self._calls <= 3:
                time.sleep(0.4)
            case "returns nan":
                replicas = math.nan
            case "asks too much":
                replicas = MOST + 1
        choice = Option(f"{replicas:g} replicas", score=replicas, uncertainty=0.5)
        return Proposal(
            ToyDecision(replicas=replicas),
            Explanation(f"a load of {state.load:g} needs {replicas:g} replicas", {"to": [choice]}),
        )


class Count(Follow):
    """Remembers how many decisions it made for a tenant, and sets as many replicas.

    `does` is "counts", or "counts as FORMAT" for a memory of another format; "forgets" returns a
    memory that cannot be stored.
    """

    def __init__(self, name: str, version: str, does: str, extra: int) -> None:
        super().__init__(name, version, does, extra)
        self.memory_format = does.partition(" as ")[2] or "toy-1"

    def decide(self, state: ToyState, memory: NDArray[np.float32] | None = None) -> Proposal:
        count = 1.0 if memory is None else float(memory[0]) + 1
        kept = np.array([count, 0.1 * count], np.float32)
        if self._does == "forgets":
            kept = np.zeros(MAX_NUMBERS + 1, np.float32)
        reason = Explanation(f"{count:g} decisions", {"to": [Option("count", score=count)]})
        return Proposal(ToyDecision(replicas=min(count + self._extra, MOST)), reason, kept)


class Learn(Count):
    """Learns the sum of the rewards of an episode of three steps, and counts its episodes.

    Replicas are what it learned. `does` is "learns", or "learns nan".
    """

    learned_format, episode_steps = "toy-learned", 3

    def decide(
        self,
        state: ToyState,
        memory: NDArray[np.float32] | None = None,
        learned: NDArray[np.float32] | None = None,
    ) -> Proposal:
        found = super().decide(state, memory)
        assert found.memory is not None
        step = EpisodeStep(np.array([state.load], np.float32), found.memory[:1])
        replicas = 0.0 if learned is None else float(learned[0])
        return found._replace(decision=ToyDecision(replicas=replicas), step=step)

    def learn(self, rows: Any, rewards: Any, episodes: Any) -> Learned:
        assert rows.shape == (3, 2)
        count = 1 if episodes is None else 1 + episodes[0]
        total = math.nan if self._does == "learns nan" else rewards.sum()
        return Learned(np.array([total, *rows[:, 1]], np.float32), np.array([count], np.float32))


class ToyEndpoint(Endpoint[ToyState, ToyDecision, ToyOutcome]):
    system = "toy"
    summary = "Replicas follow the load."
    pretrained = "toy"
    rules = ("hold", "follow")
    state, decision, outcome = ToyState, ToyDecision, ToyOutcome

    def examples(self) -> Mapping[str, ToyState]:
        return {"small": ToyState(load=42, replicas=3), "large": ToyState(load=420, replicas=30)}

    def policy(self, folder: Path) -> Policy:
        manifest = read_manifest(folder)
        content = (folder / "weights.safetensors").read_bytes()
        if hashlib.sha256(content).hexdigest() != manifest.sha256:
            raise InputError(f"{folder} is damaged")
        trained = manifest.trained
        kinds = {"counts": Count, "forgets": Count, "learns": Learn}
        kind = kinds.get(trained["does"].split(" ")[0], Follow)
        return kind(manifest.name, manifest.sha256[:12], trained["does"], trained["extra"])

    def rule(self, name: str) -> Policy:
        return Follow(name, "", "", 0) if name == "follow" else Hold()

    def quantities(self, state: ToyState, decision: ToyDecision) -> tuple[Quantity, ...]:
        return (Quantity(state.service, state.replicas, decision.replicas),)

    def constrain(
        self, state: ToyState, decision: ToyDecision, allowed: Mapping[str, float]
    ) -> ToyDecision:
        return ToyDecision(replicas=allowed.get(state.service, decision.replicas))

    def validate_decision(self, state: ToyState, decision: ToyDecision) -> str | None:
        return f"the cluster holds {MOST} replicas" if decision.replicas > MOST else None

    def features(self, state: ToyState) -> Mapping[str, float]:
        return {"load": state.load}

    def reward(self, outcome: ToyOutcome) -> float:
        return outcome.reward

    def retraining(self, features: Mapping[str, float]) -> Mapping[str, Any]:
        return {"load": features["load"]}


class Hold:
    name, version = "hold", ""

    def decide(self, state: ToyState) -> Proposal:
        return Proposal(
            ToyDecision(replicas=state.replicas),
            Explanation(f"stays at {state.replicas}", {"to": [Option("as it is", score=1.0)]}),
        )


ENDPOINT = ToyEndpoint()


def make_bundle(
    folder: Path,
    name: str = "toy",
    does: str = "follows",
    extra: int = 0,
    system: str = "toy",
) -> Path:
    """Write a bundle that `ToyEndpoint.policy` can load."""
    content = json.dumps([name, does, extra]).encode()
    digest, trained = hashlib.sha256(content).hexdigest(), {"does": does, "extra": extra}
    manifest = Manifest(
        name=name, system=system, network={}, trained=trained, results={}, loadmaster="0",
        sha256=digest, size=len(content),
    )  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(manifest_text(manifest))
    (folder / "weights.safetensors").write_bytes(content)
    return folder
