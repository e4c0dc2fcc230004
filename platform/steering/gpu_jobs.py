"""What engines of GPU jobs keep between steps: ranks, run times of owners, jobs that have ended.

It may be lost: the endpoint then orders all jobs anew, and knows less of how long they run.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar

from loadmaster.envs.errors import InputError

ENDPOINT = "loadmaster.serving.systems.das.system:ENDPOINT"  # whose state the documents are
EVENT, PLACING = "event", "placing"  # values of `ask`
ENDED_MAX = 100_000  # jobs whose end was seen


class JobHistory:
    """Completes documents of DAS's endpoint, and finds what has changed since the last step."""

    def __init__(self, replan_s: float) -> None:
        self.phase = EVENT
        self._replan_s, self._replanned_s = replan_s, float("-inf")
        self._ranks: dict[str, Any] = {}
        self._owners: dict[str, tuple[int, float]] = {}  # ended jobs, sum of log(1 + minutes)
        self._ended: OrderedDict[Hashable, None] = OrderedDict()
        self._running: frozenset[str] | None = None

    def complete(self, document: Mapping[str, Any], now_s: float) -> dict[str, Any]:
        """Add `ask`, `users` and `ranks`; every replan_s all jobs are ordered anew."""
        if now_s >= self._replanned_s + self._replan_s:
            self.phase, self._replanned_s = EVENT, now_s
        present = {record["id"] for record in document["jobs"]}
        return {
            **document,
            "ask": self.phase,
            "users": {
                owner: {"jobs": count, "mean_log_minutes": total / count}
                for owner, (count, total) in self._owners.items()
            },
            "ranks": {name: rank for name, rank in self._ranks.items() if name in present},
        }

    def note_decision(self, decision: Mapping[str, Any]) -> None:
        """Keep the ranks, by which jobs are only placed from the next step on."""
        self._ranks = dict(decision.get("ranks") or {})
        self.phase = PLACING

    def note_running(self, running: frozenset[str]) -> frozenset[str]:
        """The jobs that have started since the last step."""
        before, self._running = self._running, running
        return frozenset() if before is None else running - before

    def note_end(
        self, key: Hashable, job: str, owner: str, completion_s: float, run_s: float
    ) -> list[tuple[str, dict[str, Any]]]:
        """The outcome of a job that has completed; none if `key` was noted before."""
        if key in self._ended:
            return []
        self._ended[key] = None
        if len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)
        run_s = max(run_s, 0.0)
        count, total = self._owners.get(owner, (0, 0.0))
        self._owners[owner] = count + 1, total + math.log1p(run_s / 60)
        return [(job, {"job": job, "completion_s": max(completion_s, 0.0), "run_s": run_s})]


class ClusterSettings(Protocol):
    """Settings of a pydantic model with the name of a cluster."""

    cluster: str

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self: ...


NamedT = TypeVar("NamedT", bound=ClusterSettings)


def with_cluster_name(settings: NamedT, names: Sequence[str], origin: str) -> NamedT:
    """The settings with the cluster that the command names: at most one, that of `origin`."""
    if len(names) > 1:
        raise InputError(f"{len(names)} clusters are named; expected one, that of {origin}")
    return settings.model_copy(update={"cluster": names[0]}) if names else settings
