"""Slots that a plan takes, the outcome of a minute, and shortened notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadmaster.envs.errors import counted
from loadmaster.platform.steering.flink.client import Json
from loadmaster.serving.systems.sure.schema import SureState

NOTES = 3  # shown; the others are counted
STUCK_S = 3_600.0  # the longest wait that is reported, as of a job that reads nothing


@dataclass(frozen=True)
class Slots:
    """Slots of a job: tasks of one slot sharing group share them."""

    free: int
    groups: Mapping[str, Sequence[tuple[str, int]]]  # (vertex, parallelism) by group

    @classmethod
    def of(cls, job: Json, cluster: Json) -> Slots:
        """From the answers on a job and of `/overview`.

        A job keeps slots that it left for 50 s, in which they do not count as free. Where it is the
        only one, all slots of the cluster are its own.
        """
        groups: dict[str, list[tuple[str, int]]] = {}
        for vertex in job["vertices"]:
            group = str(vertex.get("slotSharingGroupId", ""))
            groups.setdefault(group, []).append((vertex["id"], int(vertex["parallelism"])))
        found = cls(int(cluster["slots-available"]), groups)
        if cluster.get("jobs-running") == 1:
            found = replace(found, free=max(int(cluster["slots-total"]) - found.taken(), 0))
        return found

    def most(self, vertex: str) -> int:
        """Instances that a vertex can have if the other groups keep their slots."""
        for members in self.groups.values():
            if any(vertex == one for one, _ in members):
                return self.free + max(parallelism for _, parallelism in members)
        return self.free

    def taken(self) -> int:
        return sum(max(number for _, number in members) for members in self.groups.values())


def fit_to_slots(
    plan: Mapping[str, float], now: Mapping[str, float], tasks: Mapping[str, str], slots: Slots
) -> tuple[dict[str, float], list[str]]:
    """Reduce tasks that rise, those of the last group first, until the slots suffice.

    `tasks` are vertex ids by name. Returns the plan and a line for each reduced task.
    """
    fitted = dict(plan)
    by_vertex = {vertex: name for name, vertex in tasks.items()}
    groups = [[by_vertex[vertex] for vertex, _ in members] for members in slots.groups.values()]
    excess = sum(max(fitted[name] for name in group) for group in groups)
    excess -= slots.free + slots.taken()
    lines: list[str] = []
    for group in reversed(groups):
        if excess <= 0:
            break
        needed, held = max(fitted[one] for one in group), max(now[one] for one in group)
        most = max(needed - excess, held)
        for name in group:
            if fitted[name] > most:
                lines.append(f"slots: {name} from {fitted[name]:g} to {most:g}")
                fitted[name] = most
        excess -= max(needed - most, 0)
    return fitted, lines


def outcome_of(state: SureState) -> dict[str, Any] | None:
    """Outcome of the last minute, for feedback; None if no source reports pending records.

    The latency is the time in which the sources read what is pending. What waits between tasks is
    not in it: Flink's buffers bound that.
    """
    last, sources = state.snapshots, [k for k, task in enumerate(state.tasks) if task.source]
    known = [last.pending_records[-1][k] for k in sources]
    waiting = [one for one in known if one is not None]
    if not waiting:
        return None
    pending = sum(waiting)
    read = sum(last.records_out_per_s[-1][k] for k in sources)
    latency = pending / max(read, pending / STUCK_S) if pending > 0 else 0.0
    counts, busy = last.parallelism[-1], last.busy_ms_per_s[-1]
    used = sum(count * (share or 0.0) for count, share in zip(counts, busy, strict=True))
    return {
        "job": state.job,
        "latency_s": latency,
        "utilisation": min(used / (1000 * sum(counts)), 1.0),
    }


def shortened(notes: Sequence[str]) -> list[str]:
    """The newest notes, each once; they are of polls, the oldest first."""
    notes = list(dict.fromkeys(notes))
    if len(notes) <= NOTES:
        return list(notes)
    return [*notes[-NOTES:], f"{counted(len(notes) - NOTES, 'earlier note')} on missing metrics"]
