"""Recommenders: the decision service, a rule in this process, any object of another package.

A recommender has `recommend(application, state) -> Recommendation`, and `feedback` if it learns
from outcomes. Several are tried in order, so that a rule decides while the service is silent.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from loadmaster.envs.errors import InputError
from loadmaster.envs.registry import resolve
from loadmaster.platform.steering.core import Recommendation, Recommender, SilentError
from loadmaster.serving.client import Client, ServiceError, calls
from loadmaster.serving.client.clients import DEFAULT_URL
from loadmaster.serving.decisions.tenant_names import tenant_of
from loadmaster.serving.policies.store import resolve_bundle
from loadmaster.serving.system import Endpoint, Policy

SERVICE, BUNDLE = "service", "bundle:"

_log = logging.getLogger("loadmaster.steer")


class ServiceRecommender:
    """The decision service over HTTP; each application is a tenant of its own by default.

    With `shadow` the service's rule decides, the policy beside it, and the policy's decision is
    the recommendation: one that is not carried out, so it does not count as a change there.
    """

    name = SERVICE

    def __init__(
        self, client: Client, system: str, shadow: bool = False, tenant: str | None = None
    ) -> None:
        self._client, self._system, self._tenant = client, system, tenant
        self._mode: calls.Mode = "shadow" if shadow else "active"

    def recommend(self, application: str, state: Mapping[str, Any]) -> Recommendation:
        tenant = self._tenant or tenant_of(application)
        try:
            decided = self._client.decide(self._system, state, self._mode, tenant=tenant)
        except ServiceError as fault:
            raise SilentError("recommender", f"service: {fault}") from None
        if (other := decided.shadow) is not None and other.decision is not None:
            name = "" if other.policy is None else f" {other.policy.name} {other.policy.version}"
            source = f"policy{name}".rstrip()
            other_notes = (f"the rule's reason: {decided.reason.summary}",)
            return Recommendation(
                other.decision, "decided in shadow mode", source, notes=other_notes
            )
        source = f"{decided.source} {decided.policy.name} {decided.policy.version}".rstrip()
        if decided.cause:
            source += f" ({decided.cause})"
        notes = (*decided.reason.notes, *(f"service's guard: {one}" for one in decided.guard))
        return Recommendation(
            decided.decision, decided.reason.summary, source, decided.id, tuple(notes)
        )

    def feedback(self, application: str, id: str | None, outcome: Mapping[str, Any]) -> None:
        """Report an outcome; a lost one only costs the service a reward."""
        try:
            tenant = self._tenant or tenant_of(application)
            self._client.feedback(self._system, outcome, id, tenant=tenant)
        except ServiceError as fault:
            _log.warning("%s: the outcome was not accepted: %s", application, fault)


class PolicyRecommender:
    """A policy of a system's endpoint, in this process: a rule, or a bundle without a service."""

    def __init__(self, endpoint: Endpoint[Any, Any, Any], policy: Policy, name: str) -> None:
        self.name, self._endpoint, self._policy = name, endpoint, policy

    def recommend(self, application: str, state: Mapping[str, Any]) -> Recommendation:
        try:
            parsed = self._endpoint.state.model_validate(state)
            parsed.check()
        except ValidationError as fault:
            first = fault.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            raise SilentError("recommender", f"{self.name}: {field}: {first['msg']}") from None
        proposed = self._policy.decide(parsed)
        if wrong := self._endpoint.validate_decision(parsed, proposed.decision):
            raise SilentError("recommender", f"{self.name}: {wrong}")
        explanation = proposed.explanation
        return Recommendation(
            proposed.decision.model_dump(),
            explanation.summary,
            self.name,
            notes=tuple(explanation.notes),
        )

    def feedback(self, application: str, id: str | None, outcome: Mapping[str, Any]) -> None:
        """Policies in this process do not learn."""


class FirstOf:
    """The first recommender that decides; the notes name those that are silent."""

    def __init__(self, recommenders: Sequence[Recommender]) -> None:
        self.name = ", ".join(one.name for one in recommenders)
        self._recommenders = recommenders

    def recommend(self, application: str, state: Mapping[str, Any]) -> Recommendation:
        silent: list[str] = []
        for one in self._recommenders:
            try:
                found = one.recommend(application, state)
            except SilentError as fault:
                silent.append(str(fault))
                _log.error("%s: %s is silent: %s", application, one.name, fault)
                continue
            notes = (*(f"silent: {text}" for text in silent), *found.notes)
            # Feedback is for the first one only, whose decisions have its ids.
            id = found.id if one is self._recommenders[0] else None
            return Recommendation(found.decision, found.reason, found.source, id, notes)
        raise SilentError("recommender", "; ".join(silent))

    def feedback(self, application: str, id: str | None, outcome: Mapping[str, Any]) -> None:
        self._recommenders[0].feedback(application, id, outcome)


class ForeignRecommender:
    """An object of another package whose `recommend(state)` returns a decision and a reason."""

    def __init__(self, reference: str) -> None:
        try:
            found = resolve(reference)
        except (ImportError, AttributeError, ValueError) as fault:
            raise InputError(f"recommender {reference!r}: {fault}; expected MODULE:NAME") from None
        self.name = reference
        self._object = found() if isinstance(found, type) else found
        if not callable(getattr(self._object, "recommend", None)):
            raise InputError(f"recommender {reference!r} has no method recommend(state)")

    def recommend(self, application: str, state: Mapping[str, Any]) -> Recommendation:
        try:
            answer = self._object.recommend(state)
            if isinstance(answer, Recommendation):
                return answer
            decision, reason = answer
            return Recommendation(dict(decision), str(reason), self.name)
        except SilentError:
            raise
        except Exception as fault:  # of foreign code: it must not end the loop
            text = f"{self.name}: {type(fault).__name__}: {fault}"
            raise SilentError("recommender", " ".join(text.split())) from fault

    def feedback(self, application: str, id: str | None, outcome: Mapping[str, Any]) -> None:
        report = getattr(self._object, "feedback", None)
        if callable(report):
            try:
                report(application, id, outcome)
            except Exception:  # of foreign code: the step goes on
                _log.exception("%s: %s did not take the outcome", application, self.name)


def find_recommender(
    names: Sequence[str],
    endpoint: str,
    url: str = DEFAULT_URL,
    token: str | None = None,
    deadline_s: float = 5.0,
    foreign: bool = True,
    shadow: bool = False,
    tenant: str | None = None,
) -> Recommender:
    """Build the recommender of these names: service, a rule, bundle:NAME_OR_FOLDER, MODULE:NAME.

    `endpoint` is the MODULE:NAME of the endpoint whose states the engine writes; `shadow` and
    `tenant` are for the service; without `foreign` neither bundles nor modules are loaded.
    """
    system: Endpoint[Any, Any, Any] = resolve(endpoint)
    found: list[Recommender] = []
    for name in names:
        if name == SERVICE:
            try:
                client = Client(url, token, deadline_s)
            except ValueError as fault:
                raise InputError(str(fault)) from None
            found.append(ServiceRecommender(client, system.system, shadow, tenant))
        elif name.startswith(BUNDLE) and foreign:
            policy = system.policy(resolve_bundle(name.removeprefix(BUNDLE)))
            source = f"policy {policy.name} {policy.version}".rstrip()
            found.append(PolicyRecommender(system, policy, source))
        elif ":" in name and foreign:
            found.append(ForeignRecommender(name))
        elif name in system.rules:
            found.append(PolicyRecommender(system, system.rule(name), f"rule {name}"))
        else:
            loaded = ["bundle:NAME", "MODULE:NAME"] if foreign else []
            known = ", ".join([SERVICE, *system.rules, *loaded])
            raise InputError(f"unknown recommender {name!r}; expected one of: {known}")
    if not found:
        raise InputError("no recommender is named; expected service, a rule or MODULE:NAME")
    return found[0] if len(found) == 1 else FirstOf(found)
