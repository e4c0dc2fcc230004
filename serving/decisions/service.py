"""A system at work behind HTTP: its answers, what became of them, and what is shown of both."""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any

from loadmaster.serving.decisions import request as said
from loadmaster.serving.decisions.batcher import Worker
from loadmaster.serving.decisions.decide import DecisionPipeline, DecisionResult, RequestOptions
from loadmaster.serving.decisions.request import RequestError, feedback_model, from_json, read
from loadmaster.serving.monitoring.recorder import DecisionRecorder
from loadmaster.serving.policies.manager import PolicyManager
from loadmaster.serving.policies.store import Version
from loadmaster.serving.policies.versions import Routing
from loadmaster.serving.settings import EndpointSettings
from loadmaster.serving.timestamps import iso

RECENT = 200  # decisions that are shown
KNOWN_IDS = 20_000  # decisions that feedback may still speak of
BESIDE_S = 2.0  # how long one who only watches may take


class DecisionService:
    """One system. Only the gateway's event loop calls it."""

    def __init__(
        self,
        settings: EndpointSettings,
        worker: Worker,
        answering: DecisionPipeline,
        keeper: DecisionRecorder,
        tenure: PolicyManager,
        clock: Callable[[], float] = time.time,
        luck: random.Random | None = None,
    ) -> None:
        self.endpoint = answering.decider.endpoint
        self.settings, self._keeper, self._tenure = settings, keeper, tenure
        self._worker, self._answering, self._clock = worker, answering, clock
        self._luck = luck or random.Random()
        self._feedback = feedback_model(self.endpoint)
        self._recent: deque[tuple[float, str, dict[str, Any]]] = deque(maxlen=RECENT)
        self._sources: OrderedDict[str, str] = OrderedDict()  # who made which decision
        self._tasks: set[asyncio.Task[None]] = set()

    # Decisions.

    async def decide(self, raw: bytes, frame: RequestOptions) -> dict[str, Any]:
        """The answer to a request; a RequestError where the request itself is wrong."""
        began = time.perf_counter()
        casting = self._tenure.roles.cast(frame.mode, self._keeper.rules_act)
        deadline_ms = min(frame.deadline_ms or self.settings.deadline_ms, self.settings.deadline_ms)
        beside = None
        if casting.beside is not None and self._takes_part(frame):
            beside = asyncio.ensure_future(self._propose(raw, casting.beside))
        try:
            found = await self._answering.answer(raw, casting, deadline_ms)
        except RequestError:
            if beside is not None:
                beside.cancel()
            raise
        told = self._told(found, frame)
        if frame.mode == said.SHADOW and beside is not None:
            left_s = deadline_ms / 1000 - (time.perf_counter() - began)
            await asyncio.wait({beside}, timeout=max(left_s, 0))
            if beside.done():
                told["shadow"] = _compared(beside.result(), found, casting)
        told["latency_ms"] = round(1000 * (time.perf_counter() - began), 3)
        if beside is None or told["shadow"] is not None:
            # The answer goes out first; the books are done before the next request is read.
            asyncio.get_running_loop().call_soon(self._keep, raw, frame, told, found)
        else:
            self._in_background(self._keep_later(raw, frame, dict(told), found, beside, casting))
        return told

    def _takes_part(self, frame: RequestOptions) -> bool:
        return frame.mode == said.SHADOW or self._luck.random() < self.settings.shadow_share

    async def _propose(self, raw: bytes, version: Version) -> dict[str, Any]:
        """What one who only watches would do; it never raises."""
        try:
            answers = await asyncio.wait_for(
                self._worker.propose(version.version, version.folder, [raw]), BESIDE_S
            )
            proposed: dict[str, Any] = from_json(answers[0])
        except TimeoutError:
            return {"fault": said.TIMEOUT}
        except Exception:
            return {"fault": said.DOWN}
        return proposed

    async def _keep_later(
        self,
        raw: bytes,
        frame: RequestOptions,
        told: dict[str, Any],
        found: DecisionResult,
        beside: asyncio.Future[dict[str, Any]],
        casting: Routing,
    ) -> None:
        told["shadow"] = _compared(await beside, found, casting)
        self._keep(raw, frame, told, found)

    def _told(self, found: DecisionResult, frame: RequestOptions) -> dict[str, Any]:
        return {
            "id": frame.request_id or f"{self._luck.getrandbits(128):032x}",
            "decision": found.decision,
            "source": found.source,
            "cause": found.cause,
            "reason": found.reason,
            "policy": found.policy,
            "guard": found.guard,
            "shadow": None,
        }

    def _keep(
        self, raw: bytes, frame: RequestOptions, told: dict[str, Any], found: DecisionResult
    ) -> None:
        """For those who look, for feedback, and for the log."""
        now = self._clock()
        self._recent.appendleft((now, frame.mode, told))
        self._sources[told["id"]] = told["source"]
        while len(self._sources) > KNOWN_IDS:
            self._sources.popitem(last=False)
        self._keeper.decided(found, told, now)
        self._keeper.logged(raw, frame, told, found, now)

    def feedback(self, raw: bytes) -> dict[str, Any]:
        """Outcomes of decisions that nobody remembers count for who acts now."""
        given = read(self._feedback, raw)
        reward = self.endpoint.reward(given.outcome)
        acts, _ = self._tenure.roles.acts(self._keeper.rules_act)
        source = self._sources.get(given.id or "", acts)
        outcome = given.outcome.model_dump(mode="json")
        self._keeper.fed_back(given.id, outcome, source, reward, self._clock())
        return {"accepted": True, "reward": reward}

    # What goes on beside requests.

    @property
    def ready(self) -> bool:
        """Whether the worker can be asked; until then the rule decides."""
        return self._answering.worker_is_up

    async def greet(self) -> None:
        """Ask the worker to meet the bundle that serves."""
        try:
            await self._tenure.meet()
        except Exception:
            return
        self._answering.worker_is_up = True

    async def look_after(self) -> None:
        """Every few seconds."""
        self._keeper.report(paused=self._tenure.roles.paused is not None)
        await self._tenure.look_after()

    async def order(self, verb: str, raw: bytes) -> dict[str, Any]:
        """An operator's; the status afterwards. A Conflict where it cannot be done."""
        await self._tenure.order(verb, raw)
        return self.status()

    async def close(self) -> None:
        await self._tenure.close()
        self._keeper.close()

    # What is shown.

    def brief(self) -> dict[str, Any]:
        roles = self._tenure.roles
        return {
            "system": self.endpoint.system,
            "summary": self.endpoint.summary,
            "lifecycle": self._keeper.state,
            "paused": roles.paused is not None,
            "acting": roles.acts(self._keeper.rules_act)[0],
            "policy": {"name": roles.serving.name, "version": roles.serving.version},
            "rule": self._answering.decider.rule.name,
            "decisions": self._keeper.decisions,
        }

    def status(self) -> dict[str, Any]:
        roles = self._tenure.roles
        acting, because = roles.acts(self._keeper.rules_act)
        return {
            "system": self.endpoint.system,
            "summary": self.endpoint.summary,
            "paused": roles.paused is not None,
            "acting": acting,
            "acting_because": because,
            "policies": {
                "serving": roles.serving.told(),
                "shadow": None if roles.shadow is None else roles.shadow.told(),
                "previous": None if roles.previous is None else roles.previous.told(),
            },
            "rule": self._answering.decider.rule.name,
            "deadline_ms": self.settings.deadline_ms,
            "breaker": "open" if self._answering.breaker.is_open else "closed",
            **self._keeper.status(),
        }

    def decisions(self, limit: int) -> dict[str, Any]:
        shown = islice(self._recent, limit)
        return {"decisions": [{"time": iso(at), "mode": mode, **told} for at, mode, told in shown]}

    def history(self) -> dict[str, Any]:
        return self._keeper.monitor.history(self._clock())

    def example(self, name: str) -> Any:
        examples = self.endpoint.examples()
        if name not in examples:
            raise RequestError(f"name: {name[:40]!r}; expected one of {sorted(examples)}", "name")
        return examples[name].model_dump(mode="json")

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself would let it go
        task.add_done_callback(self._tasks.discard)


def _compared(proposed: dict[str, Any], found: DecisionResult, casting: Routing) -> dict[str, Any]:
    """The watcher's decision beside the one that counts."""
    assert casting.beside is not None
    decision = proposed.get("decision")
    return {
        "policy": {"name": casting.beside.name, "version": casting.beside.version},
        "decision": decision,
        "agrees": None if decision is None else decision == found.decision,
        "fault": proposed.get("fault"),
    }
