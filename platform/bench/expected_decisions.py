"""A simulated application, and the decisions that a service must make for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from loadmaster.platform.bench.pod_client import SYSTEM, PodClient
from loadmaster.serving.client import Decision
from loadmaster.serving.decisions.policy_memory import with_line
from loadmaster.serving.decisions.request import Decided, to_json
from loadmaster.serving.decisions.tenant_names import tenant_of
from loadmaster.serving.policies.store import resolve_bundle
from loadmaster.serving.system import find_endpoint
from loadmaster.serving.worker.worker import PolicyRunner


class LocalPolicy:
    """The shipped policy and its rule in this process, as a worker of the service has them."""

    def __init__(self) -> None:
        endpoint = find_endpoint(SYSTEM)
        self._runner = PolicyRunner(endpoint, endpoint.rules[0])
        self._folder = str(resolve_bundle(endpoint.pretrained))
        self.version = self._runner.load(self._folder).version

    def decide(self, raw: bytes, memory: str) -> Decided:
        decided = self._runner.decide(raw, self.version, self._folder, memory)
        if not isinstance(decided, Decided):
            raise RuntimeError(f"the state is invalid: {decided.line}")
        return decided

    def decide_by_rule(self, raw: bytes) -> Decided:
        return self._runner.decide_by_rule(self._runner.state(raw))


@dataclass
class KnownApplication:
    """An application, and what a policy in this process remembers of it."""

    pods: PodClient
    offline: bool  # the rule acts
    memory: str = ""
    differences: list[str] = field(default_factory=list)  # from the decisions of the service

    @property
    def tenant(self) -> str:
        return tenant_of(self.pods.name)

    def request(self) -> bytes:
        return to_json({"state": self.pods.state().model_dump(mode="json", exclude_unset=True)})

    def decide(self, policy: LocalPolicy) -> Decided:
        """The decision that is expected from the service about the present state."""
        raw = self.request()
        decided = policy.decide(raw, self.memory)
        if decided.memory:
            self.memory = with_line(self.memory, decided.memory)
        return policy.decide_by_rule(raw) if self.offline else decided

    def compare(self, found: Decision, expected: Decided) -> None:
        if not found.guard and dict(found.decision) != dict(expected.decision):
            self.differences.append(f"{found.decision} over HTTP, {expected.decision} here")
