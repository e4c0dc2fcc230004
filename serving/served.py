"""A system at work behind HTTP: its bundles in their places, its answers, what became of them."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from loadmaster.serving import messages as said
from loadmaster.serving.answering import Answer, Answering, Frame
from loadmaster.serving.answers import PromoteOrder, VerbOrder
from loadmaster.serving.books import Books
from loadmaster.serving.config import EndpointSettings
from loadmaster.serving.deciding import line_of
from loadmaster.serving.keeper import Keeper
from loadmaster.serving.link import Worker
from loadmaster.serving.messages import RequestError, feedback_model, from_json, read
from loadmaster.serving.places import bundle_folder
from loadmaster.serving.renewal import Renewal
from loadmaster.serving.roles import Casting, Roles, roles_from
from loadmaster.serving.store import Version
from loadmaster.serving.times import iso
from loadmaster.serving.verdicts import Verdict

PAUSE, RESUME, PROMOTE, ROLLBACK = "pause", "resume", "promote", "rollback"
VERBS = (PAUSE, RESUME, PROMOTE, ROLLBACK)

RECENT = 200  # decisions that are shown
KNOWN_IDS = 50_000  # decisions that feedback may still speak of
BESIDE_S = 2.0  # how long one who only watches may take
SAVE_S = 10.0  # how much of the counts may be lost where the process is killed
LOAD_S = 60.0  # how long a bundle may take to load


class Conflict(Exception):  # noqa: N818 - it is no fault of the service
    """What an admin asked for cannot be done as things are; nothing has changed."""


class ServedSystem:
    """One system. Only the gateway's event loop calls it."""

    def __init__(
        self,
        settings: EndpointSettings,
        worker: Worker,
        answering: Answering,
        books: Books,
        keeper: Keeper,
        configured: Version,
        renewal: Renewal,
        clock: Callable[[], float] = time.time,
        luck: random.Random | None = None,
    ) -> None:
        self.endpoint = answering.decider.endpoint
        self.settings, self.keeper = settings, keeper
        self._worker, self._answering, self._books = worker, answering, books
        self._configured, self._clock = configured, clock
        self._renewal = renewal
        self._luck = luck or random.Random()
        remembered = books.remembered()
        if remembered.get("configured") != configured.version:
            remembered.pop("roles", None)  # somebody has named another bundle since: that serves
        self.roles: Roles = roles_from(remembered.get("roles"), configured)
        keeper.recall(remembered.get("keeper"))
        renewal.recall(remembered.get("renewal"))
        keeper.on_verdict, keeper.retraining = self._heed, renewal.told
        keeper.save_fault = lambda: books.fault
        self._feedback = feedback_model(self.endpoint)
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self._sources: OrderedDict[str, str] = OrderedDict()  # who made which decision
        self._tasks: set[asyncio.Task[None]] = set()
        self._saved_at = self._clock()

    # Decisions.

    async def decide(self, raw: bytes, frame: Frame) -> dict[str, Any]:
        """The answer to a request; a RequestError where the request itself is wrong."""
        began = time.perf_counter()
        casting = self.roles.cast(frame.mode, self.keeper.rules_act)
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

    def _takes_part(self, frame: Frame) -> bool:
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
        frame: Frame,
        told: dict[str, Any],
        found: Answer,
        beside: asyncio.Future[dict[str, Any]],
        casting: Casting,
    ) -> None:
        told["shadow"] = _compared(await beside, found, casting)
        self._keep(raw, frame, told, found)

    def _told(self, found: Answer, frame: Frame) -> dict[str, Any]:
        return {
            "id": frame.request_id or uuid.uuid4().hex,
            "decision": found.decision,
            "source": found.source,
            "cause": found.cause,
            "reason": found.reason,
            "policy": found.policy,
            "guard": found.guard,
            "shadow": None,
        }

    def _keep(self, raw: bytes, frame: Frame, told: dict[str, Any], found: Answer) -> None:
        """For those who look, for feedback, and for the log."""
        now = self._clock()
        self._recent.appendleft({"time": iso(now), "mode": frame.mode, **told})
        self._sources[told["id"]] = told["source"]
        while len(self._sources) > KNOWN_IDS:
            self._sources.popitem(last=False)
        self.keeper.decided(found, told, now)
        self.keeper.logged(raw, frame, told, found, now)

    def feedback(self, raw: bytes) -> dict[str, Any]:
        """Outcomes of decisions that nobody remembers count for who acts now."""
        given = read(self._feedback, raw)
        reward = self.endpoint.reward(given.outcome)
        source = self._sources.get(given.id or "") or self.roles.acts(self.keeper.rules_act)[0]
        outcome = given.outcome.model_dump(mode="json")
        self.keeper.fed_back(given.id, outcome, source, reward, self._clock())
        return {"accepted": True, "reward": reward}

    # What goes on beside requests.

    @property
    def ready(self) -> bool:
        """Whether the worker can be asked; until then the rule decides."""
        return self._answering.worker_is_up

    async def greet(self) -> None:
        """Ask the worker to meet the bundle that serves."""
        try:
            await asyncio.wait_for(self._worker.load(self.roles.serving.folder), LOAD_S)
        except Exception:
            return
        self._answering.worker_is_up = True

    async def look_after(self) -> None:
        """Every few seconds."""
        self.keeper.report(paused=self.roles.paused is not None)
        await self._renewal.look_after(self)
        if self._clock() - self._saved_at >= SAVE_S:
            self.save()

    def _heed(self, verdict: Verdict) -> None:
        """The monitor wants the policy retrained, be it acting meanwhile or not."""
        self._renewal.want(verdict.why)

    @property
    def serving_folder(self) -> str:
        return self.roles.serving.folder

    @property
    def rules_act(self) -> bool:
        return self.keeper.rules_act

    @property
    def shadow_version(self) -> str | None:
        return None if self.roles.shadow is None else self.roles.shadow.version

    def shadow_record(self) -> tuple[int, int]:
        """Decisions and faults of the bundle in the shadow."""
        told = self.keeper.monitor.status()["shadow"]
        return told["decisions"], told["faults"]

    def environment(self) -> Mapping[str, Any]:
        """Settings of an environment that resembles what is seen now."""
        return self.endpoint.retraining(self.keeper.monitor.input_means())

    async def put_in_shadow(self, folder: Path) -> str:
        version = await self.accept(folder)
        self._change(self.roles.with_shadow(version))
        self.keeper.shadow_begins()
        return version.version

    def promote_shadow(self, why: str) -> None:
        now = self._clock()
        self._change(self.roles.promoted(iso(now)))
        self.keeper.replaced(why, now)

    def drop_shadow(self) -> None:
        self._change(self.roles.with_shadow(None))
        self.keeper.shadow_begins()

    # What admins order.

    async def order(self, verb: str, raw: bytes) -> dict[str, Any]:
        """The status afterwards; a Conflict where it cannot be done."""
        order: Any = read(PromoteOrder if verb == PROMOTE else VerbOrder, raw or b"{}")
        now = iso(self._clock())
        if verb == PAUSE:
            self._change(self.roles.with_pause(order.reason or "by an operator"))
        elif verb == RESUME:
            self._change(self.roles.with_pause(None))
        elif verb == ROLLBACK:
            if self.roles.previous is None:
                raise Conflict("there is no previous bundle to go back to")
            self._change(self.roles.rolled_back(now))
            self.keeper.replaced("rolled back by an operator", self._clock())
        else:
            await self._promote(order, now)
        await self._books.written()  # what was ordered stays so, whatever happens next
        return self.status()

    async def _promote(self, order: PromoteOrder, now: str) -> None:
        if order.bundle is None:
            if order.to == "shadow":
                raise RequestError("bundle: expected one to put in the shadow", "bundle")
            if self.roles.shadow is None:
                raise Conflict("there is no shadow bundle to promote; name one as `bundle`")
            self._change(self.roles.promoted(now))
        else:
            folder = bundle_folder(order.bundle)
            if order.to == "shadow":
                await self.put_in_shadow(folder)
                return
            self._change(self.roles.serving_now(await self.accept(folder), now))
        self.keeper.replaced("promoted by an operator", self._clock())

    async def accept(self, folder: Path) -> Version:
        """A bundle that the worker can use, kept; an InputError or a Conflict where it cannot."""
        try:
            return await self._books.accept(folder, iso(self._clock()), self._try_out)
        except RequestError:
            self._books.discard_all_but(self.roles.versions)
            raise

    async def _try_out(self, version: Version) -> None:
        try:
            answer = from_json(await asyncio.wait_for(self._worker.load(version.folder), LOAD_S))
        except Exception as fault:
            raise Conflict(f"the worker does not answer: {line_of(fault)}") from None
        if "refused" in answer:
            raise RequestError(answer["refused"], "bundle")

    def _change(self, roles: Roles) -> None:
        self.roles = roles
        self.save()
        self._books.discard_all_but(roles.versions)

    def save(self) -> None:
        """What must survive a restart; a full disk is told in the status, and nothing else."""
        self._saved_at = self._clock()
        self._books.write(
            {
                "configured": self._configured.version,
                "roles": self.roles.record(),
                "keeper": self.keeper.record(),
                "renewal": self._renewal.record(),
            }
        )

    async def close(self) -> None:
        self.save()
        await self._books.close()
        self.keeper.close()

    # What is shown.

    def brief(self) -> dict[str, Any]:
        return {
            "system": self.endpoint.system,
            "summary": self.endpoint.summary,
            "lifecycle": self.keeper.state,
            "paused": self.roles.paused is not None,
            "acting": self.roles.acts(self.keeper.rules_act)[0],
            "policy": {"name": self.roles.serving.name, "version": self.roles.serving.version},
            "rule": self._answering.decider.rule.name,
            "decisions": self.keeper.decisions,
        }

    def status(self) -> dict[str, Any]:
        acting, because = self.roles.acts(self.keeper.rules_act)
        roles = self.roles
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
            **self.keeper.status(),
        }

    def decisions(self, limit: int) -> dict[str, Any]:
        return {"decisions": [one for _, one in zip(range(limit), self._recent, strict=False)]}

    def history(self) -> dict[str, Any]:
        return self.keeper.monitor.history(self._clock())

    def example(self, name: str) -> Any:
        examples = self.endpoint.examples()
        if name not in examples:
            raise RequestError(f"name: {name[:40]!r}; expected one of {sorted(examples)}", "name")
        return examples[name].model_dump(mode="json")

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself would let it go
        task.add_done_callback(self._tasks.discard)


def _compared(proposed: dict[str, Any], found: Answer, casting: Casting) -> dict[str, Any]:
    """The watcher's decision beside the one that counts."""
    assert casting.beside is not None
    decision = proposed.get("decision")
    return {
        "policy": {"name": casting.beside.name, "version": casting.beside.version},
        "decision": decision,
        "agrees": None if decision is None else decision == found.decision,
        "fault": proposed.get("fault"),
    }
