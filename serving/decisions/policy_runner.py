"""One decision in one process: read the request, let the policy decide, the rule where it fails.

The worker does this for many requests; the gateway does the same with the rule alone when the
worker does not answer.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from loadmaster.models.policy import Proposal
from loadmaster.serving.decisions import request as said
from loadmaster.serving.decisions.request import RequestError, is_finite, read, request_model, told
from loadmaster.serving.system import Endpoint, Policy


class NotFiniteError(Exception):
    """A policy that speaks of numbers that are none."""


class IllegalError(Exception):
    """A decision that cannot be carried out."""


class PolicyRunner:
    """The policies of an endpoint in this process, by their version, and its rule."""

    KEPT = 4  # bundles in memory: serving, shadow, previous, and one that is being tried

    def __init__(self, endpoint: Endpoint[Any, Any, Any], rule: str) -> None:
        self.endpoint = endpoint
        self.request = request_model(endpoint)
        self.rule: Policy = endpoint.rule(rule)
        self._policies: dict[str, Policy] = {}

    def load(self, folder: str) -> Policy:
        """The bundle in a folder; an InputError says what is wrong with it."""
        policy = self.endpoint.policy(Path(folder))
        self.keep(policy)
        return policy

    def keep(self, policy: Policy) -> None:
        """Nobody else may use it. Any thread may bring one, while another decides."""
        kept = {
            version: one for version, one in self._policies.items() if version != policy.version
        }
        for version in list(kept)[: max(0, len(kept) + 1 - self.KEPT)]:
            del kept[version]
        self._policies = {**kept, policy.version: policy}

    def policy(self, version: str, folder: str) -> Policy:
        """The one of that version, loaded where this process has not met it."""
        found = self._policies.get(version) or self.load(folder)
        if found.version != version:
            raise IllegalError(f"the bundle in {folder} is {found.version}, not {version}")
        return found

    def decide(self, raw: bytes, version: str, folder: str) -> dict[str, Any]:
        """By the policy of that version; without one, or where it fails, by the rule."""
        try:
            asked = read(self.request, raw)
        except RequestError as bad:
            return {"invalid": bad.line, "field": bad.field}
        if not version:
            return self.by_rule(asked.state, cause=None, detail="")
        try:
            policy = self.policy(version, folder)
            return self._checked(policy, asked.state) | {"source": said.POLICY, "cause": None}
        except Exception as fault:  # whatever a policy does, somebody has to decide
            return self.by_rule(asked.state, cause_of(fault), line_of(fault))

    def propose(self, raw: bytes, version: str, folder: str) -> dict[str, Any]:
        """What the policy of that version would do; nobody steps in where it fails."""
        try:
            asked = read(self.request, raw)
            return self._checked(self.policy(version, folder), asked.state)
        except Exception as fault:
            return {"fault": cause_of(fault), "detail": line_of(fault)}

    def by_rule(self, state: Any, cause: str | None, detail: str) -> dict[str, Any]:
        answer = self._checked(self.rule, state)
        return answer | {"source": said.FALLBACK, "cause": cause, "detail": detail}

    def _checked(self, policy: Policy, state: Any) -> dict[str, Any]:
        proposal = policy.decide(state)
        self._check(state, proposal)
        return told(proposal) | {
            "policy": {"name": policy.name, "version": policy.version},
            "quantities": self.endpoint.quantities(state, proposal.decision),
            "features": self.endpoint.features(state),
        }

    def _check(self, state: Any, proposal: Proposal) -> None:
        if not isinstance(proposal.decision, self.endpoint.decision):
            raise IllegalError(f"{type(proposal.decision).__name__} is no decision of this system")
        if not is_finite(proposal.decision.model_dump()) or not _has_finite_scores(proposal):
            raise NotFiniteError("a decision or its scores hold numbers that are none")
        fault = self.endpoint.validate_decision(state, proposal.decision)
        if fault is not None:
            raise IllegalError(fault)


def cause_of(fault: Exception) -> str:
    if isinstance(fault, NotFiniteError | FloatingPointError):
        return said.NOT_FINITE
    return said.ILLEGAL if isinstance(fault, IllegalError) else said.EXCEPTION


def line_of(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {' '.join(str(fault).split())}"[: said.LONGEST_LINE]


def _has_finite_scores(proposal: Proposal) -> bool:
    """A network that has gone wrong still has an argmax; its scores give it away."""
    return all(
        math.isfinite(one.score)
        for choices in proposal.explanation.choices.values()
        for one in choices
    )
