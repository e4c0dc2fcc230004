"""Comparison of a job before and after a rescale, and the plans that were undone.

A rescale is undone if the backlog grows faster than before by more than a share t of the throughput
before, while the job processes no more than 1 + t times as many records. A backlog that grows since
more arrives does not count: the job then processes more. Where sources report no pending records,
it is undone if the throughput fell by more than t and sources are back-pressured for at least 0.2
of the time more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from loadmaster.serving.systems.sure.flink_answers import (
    BLOCKED,
    PENDING,
    RECORDS_OUT,
    FlinkPoll,
    inputs_of,
)

Plan = Mapping[str, float]

_MORE_BLOCKED_MS = 200.0
_LEAST_RATE = 1.0  # records a second: the throughput before counts as at least so many


class Flow(NamedTuple):
    """Means over some polls of one execution."""

    throughput: float  # records a second that the sources emit
    growth: float  # of the pending records, a second; NaN: not reported
    blocked_ms: float  # back-pressured time of the most blocked source, a second

    def grows(self, tolerance: float) -> bool:
        """Whether the backlog grows by more than that share of the throughput."""
        return self.growth > tolerance * max(self.throughput, _LEAST_RATE)


@dataclass
class Change:
    """A rescale that the adapter has requested."""

    started_ms: int  # of the execution that it ends
    before: dict[str, float]
    after: dict[str, float]
    flow: Flow | None  # before it; None: not known, so it cannot be compared

    def is_repeated_by(self, plan: Plan) -> bool:
        """Whether a plan is that of the change, or further in its direction."""
        lowered = all(self.after[name] <= value for name, value in self.before.items())
        raised = all(self.after[name] >= value for name, value in self.before.items())
        pairs = [(plan.get(name, math.nan), value) for name, value in self.after.items()]
        return (
            all(wanted == value for wanted, value in pairs)
            or (lowered and all(wanted <= value for wanted, value in pairs))
            or (raised and all(wanted >= value for wanted, value in pairs))
        )

    def is_reverted_by(self, plan: Plan) -> bool:
        """Whether a plan gives every task what it had before, or more, in another way."""
        enough = all(plan.get(name, math.nan) >= value for name, value in self.before.items())
        return enough and not self.is_repeated_by(plan)


@dataclass
class Rollback:
    """Judges the last change once, and holds back plans that were undone."""

    after_s: float
    tolerance: float
    hold_s: float
    change: Change | None = None
    undo: Change | None = None  # to be undone now
    reason: str = ""
    _held: list[tuple[float, Change]] = field(default_factory=list)

    def requested(self, change: Change) -> None:
        self.change, self.undo = change, None

    def undone(self, now_s: float) -> None:
        """The plan before is requested again; it is not judged itself."""
        if self.undo is not None:
            self._held.append((now_s + self.hold_s, self.undo))
        self.change = self.undo = None

    def judge(self, polls: Sequence[FlinkPoll], plan: Plan) -> None:
        """Compare as soon as `after_s` of settled polls are known; set `undo` or forget."""
        change = self.change
        if self.undo is not None and dict(plan) != self.undo.after:
            self.undo = None  # changed from elsewhere
        if change is None or self.undo is not None:
            return
        newest = polls[-1]
        if newest.started_ms == change.started_ms:
            return  # not yet carried out
        if dict(plan) != change.after:
            self.change = None  # another plan than requested: nothing to compare
            return
        later = [one for one in polls if one.started_ms == newest.started_ms]
        if change.flow is None or (found := flow_of(later, self.after_s)) is None:
            return
        self.reason = worse(change.flow, found, self.tolerance)
        self.change, self.undo = None, change if self.reason else None

    def held_back(self, plan: Plan, now_s: float) -> str:
        """Why a plan must not be requested: it, or one further in its direction, was undone."""
        self._held = [(until, one) for until, one in self._held if until > now_s]
        for until, change in self._held:
            if change.is_repeated_by(plan):
                return f"a plan like this was undone; not repeated for {until - now_s:.0f} s"
        return ""


def flow_of(polls: Sequence[FlinkPoll], span_s: float) -> Flow | None:
    """Flow over the last `span_s` or a bit more; None without settled polls of so long."""
    settled = [one for one in polls if one.is_settled and one.metrics]
    if not settled:
        return None
    last = settled[-1]
    same = [one for one in settled if one.started_ms == last.started_ms]
    first = next((one for one in reversed(same) if last.time_s - one.time_s >= span_s), None)
    if first is None:
        return None
    elapsed = last.time_s - first.time_s
    inputs = inputs_of(last.job)
    sources = [one["id"] for one in last.job["vertices"] if not inputs.get(one["id"])]
    read = sum(_difference(first, last, source, RECORDS_OUT) for source in sources)
    blocked = max((last.metric(source, BLOCKED, "avg") for source in sources), default=math.nan)
    growth = (_pending(last, sources) - _pending(first, sources)) / elapsed
    if math.isnan(read):
        return None
    return Flow(read / elapsed, growth, 0.0 if math.isnan(blocked) else blocked)


def worse(before: Flow, after: Flow, tolerance: float) -> str:
    """What became worse, by the rule of this module; empty if nothing did."""
    allowed = tolerance * max(before.throughput, _LEAST_RATE)
    rates = f"{before.throughput:.0f} to {after.throughput:.0f} records/s"
    if math.isnan(before.growth) or math.isnan(after.growth):
        more = after.blocked_ms - before.blocked_ms
        if after.throughput < before.throughput - allowed and more >= _MORE_BLOCKED_MS:
            return f"throughput {rates}, and sources are blocked for {more:.0f} ms a second more"
        return ""
    if after.growth - max(before.growth, 0.0) > allowed and (
        after.throughput <= before.throughput + allowed
    ):
        grows = f"{before.growth:+.0f} to {after.growth:+.0f} records/s"
        return f"growth of the backlog {grows}, throughput {rates}"
    return ""


def _difference(first: FlinkPoll, last: FlinkPoll, vertex: str, name: str) -> float:
    return last.metric(vertex, name, "sum") - first.metric(vertex, name, "sum")


def _pending(poll: FlinkPoll, sources: Sequence[str]) -> float:
    """Pending records of all sources; NaN if none reports them."""
    found = [
        poll.metric(source, row["id"], "sum")
        for source in sources
        for row in poll.metrics[source]
        if str(row["id"]).endswith(PENDING)
    ]
    return sum(found) if found else math.nan
