"""A soak as a table, a summary and a picture."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadmaster.platform.bench.soak import Second, Soak
from loadmaster.platform.bench.soak_verdict import ROOM_MB, WARM_UP, Verdict
from loadmaster.platform.evaluation.chart_style import (
    DPI,
    INK,
    NEWCOMER,
    PALETTE,
    QUIET,
    STYLE,
    plain_log,
)
from loadmaster.platform.files import bytes_written_whole, written_whole
from loadmaster.serving.config import GATEWAY

FILES = TABLE, SUMMARY, CHART = "soak.csv", "soak.json", "soak.png"


def write_soak(soak: Soak, verdict: Verdict, title: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with written_whole(folder / TABLE) as file:
        table = csv.DictWriter(file, [one.name for one in fields(Second)], lineterminator="\n")
        table.writeheader()
        for row in soak.seconds:
            table.writerow({name: _shown(value) for name, value in asdict(row).items()})
    with written_whole(folder / SUMMARY) as file:
        json.dump(summary_of(soak, verdict), file, indent=2)
        file.write("\n")
    with mpl.rc_context(STYLE), bytes_written_whole(folder / CHART) as picture:
        draw_soak(soak, title).savefig(picture, format="png", dpi=DPI)


def summary_of(soak: Soak, verdict: Verdict) -> dict[str, object]:
    return {
        "holds": verdict.holds,
        **asdict(verdict),
        "allowed_growth_mb": ROOM_MB,
        "systems": {
            system: {"peak_requests_per_s": soak.peaks[system], **report}
            for system, report in soak.reports.items()
        },
    }


def draw_soak(soak: Soak, title: str) -> Figure:
    figure = Figure(figsize=(10, 7), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    asked, took, memory = figure.subplots(3, 1, sharex=True)
    systems = sorted(soak.reports)
    colours = dict(zip(systems, (NEWCOMER, *PALETTE[1:]), strict=False))
    for system in systems:
        rows, colour = [row for row in soak.seconds if row.system == system], colours[system]
        _line(asked, rows, lambda row: row.requests, colour, system)
        _line(took, rows, lambda row: row.p50_ms, colour, f"{system}, p50")
        _line(took, rows, lambda row: row.p99_ms, colour, f"{system}, p99", 0.9)
        _line(memory, rows, lambda row: row.worker_mb, colour, f"{system}'s worker", 1.8)
    first = [row for row in soak.seconds if row.system == systems[0]]
    _line(memory, first, lambda row: row.gateway_mb, INK, GATEWAY, 1.8)
    _mark_failures(asked, soak.seconds)
    _mark_warm_up(memory, first)
    for axes, heading, unit in (
        (asked, "Requests", "a second"),
        (took, "Latency, from when each was due", "ms"),
        (memory, "Resident memory", "MB"),
    ):
        axes.set_title(heading, loc="left", fontsize=11)
        axes.set_ylabel(unit)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
    asked.set_ylim(bottom=0)
    memory.set_ylim(bottom=0)
    took.set_yscale("log")
    plain_log(took.yaxis, labels=6)
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
    known = [(row.second / 60, told) for row in rows if (told := value(row)) is not None]
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
