"""One tenant of a system: all its state, created and restored by the tenant's name."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from pydantic_core import from_json

from loadmaster.serving.decisions.episodes import Episode
from loadmaster.serving.decisions.guard import Guard, GuardSettings, restore_history
from loadmaster.serving.decisions.policy_memory import MAX_TEXT, EncodedStep, with_line
from loadmaster.serving.decisions.request import Decided, RequestOptions, iso
from loadmaster.serving.decisions.tenant_database import SavedTenant
from loadmaster.serving.decisions.tenant_store import TenantStore, clock_offset_s
from loadmaster.serving.http.idempotency import IdempotencyCache
from loadmaster.serving.monitoring.decision_log import DecisionLog
from loadmaster.serving.monitoring.log_files import DecisionRow
from loadmaster.serving.monitoring.metrics import TenantLabels
from loadmaster.serving.monitoring.monitor import MonitorSettings
from loadmaster.serving.monitoring.recorder import DecisionRecorder
from loadmaster.serving.policies.control_view import ControlView
from loadmaster.serving.system import Profile

RECENT = 200  # decisions that are listed
KNOWN_IDS = 20_000  # decisions that feedback can refer to
SAVED_IDS = 1000  # of them, the latest, over a restart

# Memory, estimated: of a tenant without its parts, and of each part.
TENANT_BYTES, QUANTITY_BYTES, ID_BYTES, ROW_BYTES = 7000, 500, 200, 700


class TenantParts(NamedTuple):
    """What all tenants of a system share."""

    system: str
    guard: GuardSettings
    monitor: MonitorSettings
    start: str  # lifecycle state of a new tenant
    log: DecisionLog
    control: ControlView
    store: TenantStore
    labels: TenantLabels
    profile: Callable[[str], Profile] = lambda tenant: Profile()  # as configured


class Tenant:
    """Guard windows, responses by request id, what policies remember, lifecycle, rewards, drift,
    pause, the running episode, latest decisions.

    The first three are written when they change, the rest as one record.
    """

    def __init__(self, name: str, parts: TenantParts, now: float) -> None:
        self.name, self.paused = name, None  # type: str, str | None
        self.guard = Guard(parts.guard, partial(parts.store.put_quantity, name))
        self.responses = IdempotencyCache(time.monotonic, self._save_response)
        self.recorder = DecisionRecorder(
            parts.system,
            parts.monitor,
            parts.log,
            parts.control,
            parts.start,
            now,
            name,
            parts.labels,
            parts.profile(name),
        )
        self.bundles: tuple[str, str | None] = "", None  # versions that the monitor refers to
        self.used = now
        self.pins = 0  # requests under way: it stays in memory
        self.changes = 0  # decisions and feedback since it was loaded
        self.saved_transitions = 0  # of the lifecycle, when it was last saved
        self.policy_memory = ""  # see policy_memory.py
        self.episode: Episode | None = None  # None: no policy learns from it
        self.steering: dict[str, Any] | None = None  # the last report of a steerer, and its time
        self._store = parts.store
        self._recent: deque[DecisionRow] = deque(maxlen=RECENT)  # without states
        self._recent_bytes = 0
        self._sources: OrderedDict[str, str] = OrderedDict()  # by decision id

    @property
    def memory_bytes(self) -> int:
        """Estimated, for the bound on all tenants."""
        return (
            TENANT_BYTES
            + QUANTITY_BYTES * len(self.guard.histories)
            + ID_BYTES * len(self._sources)
            + self._recent_bytes
            + len(self.policy_memory)
            + (0 if self.episode is None else self.episode.memory_bytes)
            + self.responses.memory_bytes
            + self.recorder.monitor.memory_bytes
        )

    def record_decision(
        self,
        raw: bytes,
        options: RequestOptions,
        response: dict[str, Any],
        decided: Decided,
        now: float,
        memory: str = "",
    ) -> None:
        """Record a decision for lists, feedback, monitor and log.

        `memory`: what policies remembered before it.
        """
        row = self.recorder.record_decision(raw, options, response, decided, now, memory)
        if len(self._recent) == RECENT:
            self._recent_bytes -= _row_bytes(self._recent[-1])
        row = row._replace(state="", memory=None)
        self._recent.appendleft(row)
        self._recent_bytes += _row_bytes(row)
        self._sources[row.id] = decided.source
        if len(self._sources) > KNOWN_IDS:
            self._sources.popitem(last=False)
        if decided.step is not None:
            self.add_step(row.id, decided.step)

    def add_step(self, decision_id: str, step: EncodedStep) -> None:
        """Add a decision to the running episode; feedback completes it."""
        if self.episode is None or not self.episode.fits(step):
            self.episode = Episode(step.format)
        self.episode.add(decision_id, step)

    def remember(self, line: str) -> None:
        """Keep what a policy remembers from now on; it is written at once, as guard windows are."""
        self.policy_memory = with_line(self.policy_memory, line)
        self._store.put_memory(self.name, self.policy_memory)

    def set_learned(self, kind: str, episodes: str) -> None:
        """Keep what a policy learned of the tenant's episodes (`Learned.episodes`, base64)."""
        if self.episode is None or self.episode.format != kind:
            self.episode = Episode(kind)
        self.episode.learned = episodes

    def source_of(self, decision_id: str | None, default: str) -> str:
        """What decided; `default` if the decision is not known."""
        return self._sources.get(decision_id or "", default)

    def decisions(self, limit: int) -> list[dict[str, Any]]:
        """The latest decisions, newest first."""
        return [
            {
                "time": iso(row.time),
                "mode": row.mode,
                "id": row.id,
                "tenant": row.tenant,
                "decision": from_json(row.decision),
                "source": row.source,
                "cause": row.cause,
                "reason": from_json(row.reason),
                "policy": {"name": row.policy, "version": row.version},
                "guard": list(row.guard),
                "shadow": None if row.shadow is None else from_json(row.shadow),
                "latency_ms": row.latency_ms,
            }
            for row in islice(self._recent, limit)
        ]

    def _save_response(self, request_id: str, digest: bytes, at_s: float, body: bytes) -> None:
        self._store.put_response(self.name, request_id, digest, at_s + clock_offset_s(), body)

    def record(self) -> dict[str, Any]:
        latest = list(islice(reversed(self._sources.items()), SAVED_IDS))[::-1]
        return {
            "paused": self.paused,
            "bundles": self.bundles,
            "sources": latest,
            "recorder": self.recorder.record(),
            "episode": self.episode and self.episode.record(),
        }

    def restore(self, saved: SavedTenant) -> None:
        """Restore what was saved; damaged parts are ignored."""
        offset_s, now_s = clock_offset_s(), time.monotonic()
        for name, history in saved.quantities:
            try:
                restored = restore_history(from_json(history), offset_s, now_s)
                self.guard.histories[from_json(name)] = restored
            except (ValueError, TypeError, OverflowError):
                continue
        for request_id, digest, at, body in saved.responses:
            self.responses.restore(request_id, digest, min(at - offset_s, now_s), body)
        if len(saved.memory) <= MAX_TEXT:
            self.policy_memory = saved.memory
        try:
            record = None if saved.record is None else from_json(saved.record)
        except ValueError:
            return
        if not isinstance(record, dict):
            return
        if "recorder" in record:
            self.recorder.restore(record["recorder"])
        if isinstance(paused := record.get("paused"), str):
            self.paused = paused
        self.episode = Episode.restored(record.get("episode"))
        try:
            serving, shadow = record["bundles"]
            self.bundles = str(serving), shadow
            self._sources.update((str(id_), str(source)) for id_, source in record["sources"])
        except (TypeError, KeyError, ValueError):
            return


def _row_bytes(row: DecisionRow) -> int:
    return ROW_BYTES + len(row.decision) + len(row.reason) + len(row.shadow or "")
