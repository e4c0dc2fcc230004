"""A system so small that its decisions can be worked out by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.models.manifest import FILE, Manifest, manifest_text, read_manifest
from loadmaster.serving.endpoint import Endpoint, Proposal, Quantity, Reason, Record, State

WEIGHTS = "per_replica.txt"


class Load(State):
    load: int


class Replicas(Record):
    replicas: int


class Outcome(Record):
    slow: int


@dataclass(frozen=True)
class Divide:
    """So many requests a replica; it has no answer to 13."""

    name: str
    version: str
    per_replica: int

    def decide(self, state: Load) -> Proposal:
        if state.load == 13:
            raise ZeroDivisionError("unlucky")
        replicas = Replicas(replicas=-(-state.load // self.per_replica))
        return Proposal(replicas, Reason(f"{self.per_replica} requests a replica", {}))


class TinyEndpoint(Endpoint[Load, Replicas, Outcome]):
    system = "tiny"
    summary = "As many replicas as the load needs."
    pretrained = "tiny-one"
    rules = ("threes", "fives")
    state = Load
    decision = Replicas
    outcome = Outcome

    def examples(self) -> Mapping[str, Load]:
        return {"small": Load(load=7), "large": Load(load=7000)}

    def policy(self, folder: Path) -> Divide:
        manifest = read_manifest(folder)
        text = (folder / WEIGHTS).read_text()
        if hashlib.sha256(text.encode()).hexdigest() != manifest.sha256:
            raise InputError(f"{folder} is damaged; expected the weights it was saved with")
        return Divide(manifest.name, manifest.sha256[:12], int(text))

    def rule(self, name: str) -> Divide:
        return Divide(name, "rule", {"threes": 3, "fives": 5}[name])

    def quantities(self, state: Load, decision: Replicas) -> tuple[Quantity, ...]:
        return (Quantity("replicas", 1, decision.replicas),)

    def constrain(self, state: Load, decision: Replicas, allowed: Mapping[str, float]) -> Replicas:
        return Replicas(replicas=int(allowed["replicas"]))

    def fault(self, state: Load, decision: Replicas) -> str | None:
        return None if decision.replicas >= 0 else "fewer than no replicas"

    def features(self, state: Load) -> Mapping[str, float]:
        return {"load": state.load}

    def reward(self, outcome: Outcome) -> float:
        return -float(outcome.slow)

    def retraining(self, features: Mapping[str, float]) -> Mapping[str, Any]:
        return {"load": features["load"]}


ENDPOINT = TinyEndpoint()


def make_tiny_bundle(folder: Path, per_replica: int) -> str:
    """A bundle of the tiny system; its version."""
    folder.mkdir(parents=True)
    text = str(per_replica)
    digest = hashlib.sha256(text.encode()).hexdigest()
    manifest = Manifest(folder.name, "tiny", {}, {}, {}, "0.1.0", digest, len(text))
    (folder / FILE).write_text(manifest_text(manifest))
    (folder / WEIGHTS).write_text(text)
    return digest[:12]
