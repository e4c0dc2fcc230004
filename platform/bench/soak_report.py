"""Result of a soak: whether it passed, and its table, summary and chart."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadmaster.models.files import atomic_binary_file, atomic_text_file
from loadmaster.platform.bench.soak import Second, Soak
from loadmaster.platform.evaluation.chart_style import (
    DPI,
    INK,
    LEARNED_COLOUR,
    PALETTE,
    QUIET,
    STYLE,
    plain_log,
)
from loadmaster.serving.settings import GATEWAY

WARM_UP = 0.4  # share of the time: bounded caches and histories fill up first
ALLOWED_GROWTH_MB = 16.0


@dataclass(frozen=True)
class Growth:
    """Memory of a process after the warm-up, in the first and the last quarter of that time.

    Each is the first decile of its quarter: rows buffered for the next log file come and go, a leak
    stays.
    """

    process: str
    early_mb: float
    late_mb: float
    mb_per_hour: float

    @property
    def is_flat(self) -> bool:
        return self.late_mb - self.early_mb <= ALLOWED_GROWTH_MB


@dataclass(frozen=True)
class SoakResult:
    """Totals of a soak."""

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


def soak_result(soak: Soak) -> SoakResult:
    rows = soak.seconds
    known = [(row.requests, row.by_policy) for row in rows if row.by_policy is not None]
    return SoakResult(
        requests=sum(report["requests"] for report in soak.reports.values()),
        failed=sum(sum(report["failed"].values()) for report in soak.reports.values()),
        p50_ms=_median([row.p50_ms for row in rows]),
        p99_ms=_median([row.p99_ms for row in rows]),
        by_policy=sum(n * share for n, share in known) / max(1, sum(n for n, _ in known)),
        memory=tuple(growths(rows)),
    )


def growths(rows: Sequence[Second]) -> Iterator[Growth]:
    systems = sorted({row.system for row in rows})
    first = [row for row in rows if row.system == systems[0]]
    yield growth(GATEWAY, [row.gateway_mb for row in first])
    for system in systems:
        yield growth(system, [row.worker_mb for row in rows if row.system == system])


def growth(process: str, memory_mb: Sequence[float | None]) -> Growth:
    """Compare early and late memory; `memory_mb` has one value per second."""
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


FILES = TABLE, SUMMARY, CHART = "soak.csv", "soak.json", "soak.png"


def write_soak(soak: Soak, result: SoakResult, title: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_text_file(folder / TABLE) as file:
        table = csv.DictWriter(file, [one.name for one in fields(Second)], lineterminator="\n")
        table.writeheader()
        for row in soak.seconds:
            table.writerow({name: _shown(value) for name, value in asdict(row).items()})
    with atomic_text_file(folder / SUMMARY) as file:
        json.dump(summary_of(soak, result), file, indent=2)
        file.write("\n")
    with mpl.rc_context(STYLE), atomic_binary_file(folder / CHART) as picture:
        draw_soak(soak, title).savefig(picture, format="png", dpi=DPI)


def summary_of(soak: Soak, result: SoakResult) -> dict[str, object]:
    return {
        "holds": result.holds,
        **asdict(result),
        "allowed_growth_mb": ALLOWED_GROWTH_MB,
        "systems": {
            system: {"peak_requests_per_s": soak.peaks[system], **report}
            for system, report in soak.reports.items()
        },
    }


def draw_soak(soak: Soak, title: str) -> Figure:
    figure = Figure(figsize=(10, 7), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    requests, latency, memory = figure.subplots(3, 1, sharex=True)
    systems = sorted(soak.reports)
    colours = dict(zip(systems, (LEARNED_COLOUR, *PALETTE[1:]), strict=False))
    for system in systems:
        rows, colour = [row for row in soak.seconds if row.system == system], colours[system]
        _line(requests, rows, lambda row: row.requests, colour, system)
        _line(latency, rows, lambda row: row.p50_ms, colour, f"{system}, p50")
        _line(latency, rows, lambda row: row.p99_ms, colour, f"{system}, p99", 0.9)
        _line(memory, rows, lambda row: row.worker_mb, colour, f"{system}'s worker", 1.8)
    first = [row for row in soak.seconds if row.system == systems[0]]
    _line(memory, first, lambda row: row.gateway_mb, INK, GATEWAY, 1.8)
    _mark_failures(requests, soak.seconds)
    _mark_warm_up(memory, first)
    for axes, heading, unit in (
        (requests, "Requests", "per second"),
        (latency, "Latency from the intended start", "ms"),
        (memory, "Resident memory", "MB"),
    ):
        axes.set_title(heading, loc="left", fontsize=11)
        axes.set_ylabel(unit)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
    requests.set_ylim(bottom=0)
    memory.set_ylim(bottom=0)
    latency.set_yscale("log")
    plain_log(latency.yaxis, labels=6)
    memory.set_xlabel("minutes")
    return figure


def _line(
    axes: Axes,
    rows: Sequence[Second],
    value: Callable[[Second], float | None],
    colour: str,
    label: str,
    width: float = 1.4,
) -> None:
    known = [(row.second / 60, y) for row in rows if (y := value(row)) is not None]
    axes.plot(*zip(*known, strict=True), color=colour, linewidth=width, label=label)


def _mark_failures(axes: Axes, rows: Sequence[Second]) -> None:
    failed = [(row.second / 60, row.failed) for row in rows if row.failed]
    if failed:
        axes.scatter(*zip(*failed, strict=True), color=PALETTE[6], marker="x", label="failed")


def _mark_warm_up(axes: Axes, rows: Sequence[Second]) -> None:
    if rows:
        axes.axvline(WARM_UP * rows[-1].second / 60, color=QUIET, linestyle=(0, (4, 3)), zorder=0)


def _shown(value: object) -> object:
    return "" if value is None else round(value, 3) if isinstance(value, float) else value
