"""A system's deployment: runs the policy, and the rule where the policy fails."""

import asyncio
import contextlib
import gc
import math
import os
import threading
import time
from pathlib import Path
from typing import Any

from pydantic_core import to_json as encode_json

from loadmaster.envs.errors import InputError
from loadmaster.models.policy import Explanation, Option, Proposal
from loadmaster.serving.decisions.episodes import learn_with
from loadmaster.serving.decisions.policy_memory import decide_with, encode_step, memory_line
from loadmaster.serving.decisions.request import (
    EXCEPTION,
    FALLBACK,
    ILLEGAL,
    NOT_FINITE,
    POLICY,
    UNKNOWN,
    Decided,
    Invalid,
    Loaded,
    PolicyRef,
    Proposed,
    RequestError,
    encode_reply,
    line_of,
    to_json,
)
from loadmaster.serving.decisions.struct_reader import StateReader
from loadmaster.serving.replicas.autoscaling import LoadMeter
from loadmaster.serving.system import Endpoint, Policy, find_endpoint
from loadmaster.serving.worker.rpc import DECIDE, LEARN, PROPOSE, PolicyCall, RpcServer

HANG_S = 5.0  # a call that takes longer is taken for endless: Serve replaces the replica


class SystemWorker:
    """Two runners: one for decisions that are acted on, one for decisions in the shadow and for
    learning from episodes.

    Neither of the latter delays the policy that acts. Policies have scratch tables, so each runner
    is used by one thread at a time, under its lock.
    """

    def __init__(
        self, system: str, reference: str, rule: str, folder: str, warm: bool = True
    ) -> None:
        _use_one_torch_thread()
        endpoint = find_endpoint(system, reference)
        self._active, self._shadow = PolicyRunner(endpoint, rule), PolicyRunner(endpoint, rule)
        self._active_lock, self._shadow_lock = threading.Lock(), threading.Lock()
        self._busy_since: float | None = None
        self.meter = LoadMeter()  # of decisions that are acted on
        calls = {DECIDE: self._decide, PROPOSE: self._propose, LEARN: self._learn}
        self.rpc = RpcServer(calls)
        policies = [self._active.rule]
        # The bundle may be gone when a worker is restarted. The gateway keeps copies of the bundles
        # that serve, and names one in every call.
        with contextlib.suppress(InputError):
            policies.append(self._active.load(folder))
        if warm:
            endpoint.warm_up(*policies)
            freeze_gc()

    async def decide(
        self,
        version: str,
        folder: str,
        request: bytes,
        deadline: float = math.inf,
        memory: str = "",
    ) -> bytes:
        call = PolicyCall(version, folder, request, deadline, memory)
        return await asyncio.to_thread(self._decide, call)

    async def propose(self, version: str, folder: str, request: bytes, memory: str = "") -> bytes:
        call = PolicyCall(version, folder, request, memory=memory)
        return await asyncio.to_thread(self._propose, call)

    async def learn(self, version: str, folder: str, request: bytes) -> bytes:
        return await asyncio.to_thread(self._learn, PolicyCall(version, folder, request))

    async def load(self, folder: str) -> bytes:
        """Load the bundle in a folder for both runners, before any decision needs it."""

        def load_both() -> None:
            self._active.load(folder)  # without the lock, which a decision that hangs would keep
            with self._shadow_lock:
                self._shadow.load(folder)

        refused = None
        try:
            await asyncio.to_thread(load_both)
        except InputError as fault:
            refused = str(fault)
        return to_json(Loaded(refused=refused))

    @property
    def is_up(self) -> bool:
        return True

    async def check_health(self) -> None:
        """Raise if a decision hangs; Serve calls this and replaces the replica."""
        since = self._busy_since
        if since is not None and time.monotonic() - since > HANG_S:
            raise RuntimeError("a decision hangs")

    def _decide(self, call: PolicyCall) -> bytes:
        with self._active_lock:
            self._busy_since = time.monotonic()
            self.meter.add(1)
            try:
                if self._busy_since > call.deadline:
                    raise TimeoutError("the gateway no longer waits for this call")
                return encode_reply(
                    self._active.decide(call.request, call.version, call.folder, call.memory)
                )
            finally:
                self._busy_since = None
                self.meter.add(-1)

    def _propose(self, call: PolicyCall) -> bytes:
        with self._shadow_lock:
            return to_json(
                self._shadow.propose(call.request, call.version, call.folder, call.memory)
            )

    def _learn(self, call: PolicyCall) -> bytes:
        with self._shadow_lock:
            return self._shadow.learn(call.request, call.version, call.folder)


class NotFiniteError(Exception):
    """The policy returned NaN or infinity."""


class IllegalError(Exception):
    """The decision cannot be carried out."""


class PolicyRunner:
    """The policies of an endpoint in this process, by version, and its rule.

    The worker decides with it; the gateway uses its rule when the worker does not answer.
    """

    MAX_POLICIES = 4  # in memory: serving, shadow, previous, and one that is being loaded

    def __init__(self, endpoint: Endpoint[Any, Any, Any], rule: str) -> None:
        self.endpoint = endpoint
        self._reader = StateReader(endpoint)
        self.rule: Policy = endpoint.rule(rule)
        self._policies: dict[str, Policy] = {}

    def load(self, folder: str) -> Policy:
        """Load the bundle in a folder; raises InputError if it cannot be used."""
        policy = self.endpoint.policy(Path(folder))
        # A new mapping with the latest ones: another thread may decide meanwhile.
        kept = {name: one for name, one in self._policies.items() if name != policy.version}
        latest = list(kept.items())[1 - self.MAX_POLICIES :]
        self._policies = {**dict(latest), policy.version: policy}
        return policy

    def decide(self, raw: bytes, version: str, folder: str, memory: str = "") -> Decided | Invalid:
        """Decide by the policy of that version; by the rule if it is "" or the policy fails.

        The rule also decides where the policy proposes that; what the policy remembers is kept.
        `memory`: what policies remember of the tenant.
        """
        try:
            state = self.state(raw)
        except RequestError as error:
            return Invalid(line=error.line, field=error.field)
        if not version:
            return self.decide_by_rule(state)
        try:
            decided = self._run(self._policy(version, folder), state, POLICY, memory=memory)
        except Exception as fault:  # of any kind: the rule must decide then
            return self.decide_by_rule(state, _cause_of(fault), line_of(fault))
        if not decided.detail:
            return decided
        by_rule = self.decide_by_rule(state, UNKNOWN, decided.detail)
        notes = [*by_rule.reason["notes"], decided.detail]
        reason = {**by_rule.reason, "notes": notes}
        return by_rule._replace(memory=decided.memory, step=decided.step, reason=reason)

    def decide_by_rule(self, state: Any, cause: str | None = None, detail: str = "") -> Decided:
        return self._run(self.rule, state, FALLBACK, cause, detail)

    def propose(self, raw: bytes, version: str, folder: str, memory: str = "") -> Proposed:
        """Decide by the policy of that version, without a fallback."""
        try:
            policy, state = self._policy(version, folder), self.state(raw)
            decided = self._run(policy, state, POLICY, memory=memory, acts=False)
            return Proposed(decision=decided.decision, memory=decided.memory, step=decided.step)
        except Exception as fault:
            return Proposed(fault=_cause_of(fault), detail=line_of(fault))

    def learn(self, request: bytes, version: str, folder: str) -> bytes:
        """Let the policy of that version learn from an episode; raises if it cannot."""
        return learn_with(self._policy(version, folder), request)

    def state(self, raw: bytes) -> Any:
        """The state in a request; raises RequestError if the request is invalid."""
        return self._reader.read(raw)

    def _policy(self, version: str, folder: str) -> Policy:
        found = self._policies.get(version) or self.load(folder)
        if found.version != version:
            raise IllegalError(f"the bundle in {folder} is {found.version}, not {version}")
        return found

    def _run(
        self,
        policy: Policy,
        state: Any,
        source: str,
        cause: str | None = None,
        detail: str = "",
        memory: str = "",
        acts: bool = True,
    ) -> Decided:
        proposal = decide_with(policy, state, memory)
        return Decided(
            decision=self._checked(state, proposal),
            reason=_encode_explanation(proposal.explanation),
            source=source,
            cause=cause,
            detail=detail or proposal.unknown,
            policy=PolicyRef(name=policy.name, version=policy.version),
            quantities=self.endpoint.quantities(state, proposal.decision),
            features=dict(self.endpoint.features(state)),
            memory=memory_line(policy, proposal),
            step=encode_step(policy, proposal, acts),
        )

    def _checked(self, state: Any, proposal: Proposal) -> dict[str, Any]:
        """The decision as JSON data, if it is finite and can be carried out."""
        if not isinstance(proposal.decision, self.endpoint.decision):
            raise IllegalError(f"{type(proposal.decision).__name__} is not the system's decision")
        decision: dict[str, Any] = proposal.decision.model_dump(mode="json")
        # A network with NaN weights still has an argmax; its scores show them.
        options = (one for many in proposal.explanation.choices.values() for one in many)
        if not _is_finite(decision) or not all(math.isfinite(one.score) for one in options):
            raise NotFiniteError("the decision or its scores hold NaN or infinity")
        fault = self.endpoint.validate_decision(state, proposal.decision)
        if fault is not None:
            raise IllegalError(fault)
        return decision


def _is_finite(value: Any) -> bool:
    """Whether JSON data holds neither NaN nor infinity."""
    text = encode_json(value, inf_nan_mode="constants")  # half the time of visiting all values
    if b"NaN" not in text and b"Infinity" not in text:
        return True
    values = [value]  # a name may contain them
    for one in values:  # grows meanwhile
        values += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    return all(math.isfinite(one) for one in values if isinstance(one, float))


def _cause_of(fault: Exception) -> str:
    if isinstance(fault, NotFiniteError | FloatingPointError):
        return NOT_FINITE
    return ILLEGAL if isinstance(fault, IllegalError) else EXCEPTION


def _encode_explanation(explanation: Explanation) -> dict[str, Any]:
    def encode(one: Option) -> dict[str, Any]:
        return {
            "name": one.name,
            "score": _rounded(one.score),
            "uncertainty": _rounded(one.uncertainty),
            "probability": _rounded(one.probability),
        }

    choices = {kind: list(map(encode, some)) for kind, some in explanation.choices.items()}
    notes = list(explanation.notes)
    return {"summary": explanation.summary, "choices": choices, "notes": notes}


def _rounded(value: float | None) -> float | None:
    """Round to six digits; None for NaN and infinity."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")


def freeze_gc() -> None:
    """Exclude all objects that exist now from garbage collection. Call it when all is loaded.

    Libraries leave half a million objects. Every full collection would visit them, for tenths of a
    second in which no request is answered.
    """
    gc.collect()
    gc.freeze()


def _use_one_torch_thread() -> None:
    """The networks are small; more threads would only compete with the gateway for its core."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    torch.set_num_threads(1)
