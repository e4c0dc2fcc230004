"""Whether a soak held: nobody failed, and no process grew."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadmaster.platform.bench.soak import Second, Soak
from loadmaster.serving.config import GATEWAY

WARM_UP = 0.4  # of the time: caches and tables of what happened lately fill up to their bounds
ROOM_MB = 16.0  # what a process may vary by: memory is not given back as it was taken


@dataclass(frozen=True)
class Growth:
    """A process's memory after the warm-up, in the first and the last quarter of that time.

    The least it had but for a tenth of the quarter: rows that wait for the log's next file come
    and go, what leaks stays.
    """

    process: str
    early_mb: float
    late_mb: float
    mb_per_hour: float

    @property
    def is_flat(self) -> bool:
        return self.late_mb - self.early_mb <= ROOM_MB


@dataclass(frozen=True)
class Verdict:
    requests: int
    failed: int
    p50_ms: float  # medians of the seconds
    p99_ms: float
    by_policy: float  # share of decisions; the others were a rule's
    memory: tuple[Growth, ...]

    @property
    def holds(self) -> bool:
        return self.requests > 0 and self.failed == 0 and all(one.is_flat for one in self.memory)

    @property
    def line(self) -> str:
        grown = "; ".join(
            f"{one.process} {one.late_mb - one.early_mb:+.1f} MB ({one.mb_per_hour:+.0f} an hour)"
            for one in self.memory
        )
        flat = "memory is flat" if all(one.is_flat for one in self.memory) else "memory grows"
        return (
            f"{'holds' if self.holds else 'does not hold'}: {self.failed:,} of {self.requests:,} "
            f"requests failed, {100 * self.by_policy:.1f}% decided by the policy; {flat}: {grown}"
        )


def judge(soak: Soak) -> Verdict:
    rows = soak.seconds
    told = [(row.requests, row.by_policy) for row in rows if row.by_policy is not None]
    return Verdict(
        requests=sum(report["requests"] for report in soak.reports.values()),
        failed=sum(sum(report["failed"].values()) for report in soak.reports.values()),
        p50_ms=_median([row.p50_ms for row in rows]),
        p99_ms=_median([row.p99_ms for row in rows]),
        by_policy=sum(n * share for n, share in told) / max(1, sum(n for n, _ in told)),
        memory=tuple(growths(rows)),
    )


def growths(rows: Sequence[Second]) -> Iterator[Growth]:
    systems = sorted({row.system for row in rows})
    first = [row for row in rows if row.system == systems[0]]
    yield growth(GATEWAY, [row.gateway_mb for row in first])
    for system in systems:
        yield growth(system, [row.worker_mb for row in rows if row.system == system])


def growth(process: str, memory_mb: Sequence[float | None]) -> Growth:
    """`memory_mb`: second by second."""
    after = [one for one in memory_mb[int(WARM_UP * len(memory_mb)) :] if one is not None]
    quarter = max(1, len(after) // 4)
    early, late = _least(after[:quarter]), _least(after[-quarter:])
    apart_s = max(1, len(after) - quarter)
    return Growth(process, early, late, (late - early) * 3600 / apart_s)


def _least(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 10] if values else float("nan")


def _median(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else float("nan")
