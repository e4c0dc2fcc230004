"""The service under a steady load while its processes are killed: what its callers see.

The load comes from the service's own client with its default deadline and retries. The service has
two gateways and two workers of each system, so that one of each is left.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadmaster.models.files import atomic_text_file
from loadmaster.platform.bench.bench_server import BenchServer
from loadmaster.platform.bench.client_load import (
    POLICY,
    ClientLoad,
    ClientReport,
    Request,
    running_load,
)
from loadmaster.platform.bench.http_load import percentile_ms
from loadmaster.platform.bench.kills import KINDS, SEED, Killed, kill_in_turn
from loadmaster.platform.bench.service_processes import wait_until_complete
from loadmaster.platform.bench.soak import EXAMPLES
from loadmaster.platform.evaluation import charts

REPLICAS = 2
RATE = 20.0  # requests/s of each system
TENANTS = 8
AFTER_S = 5.0  # a kill's requests: from the kill until this long after the replacement
FILES = TABLE, KILLS, SUMMARY, CHART = (
    "soak-kills.csv",
    "kills.csv",
    "soak-kills.json",
    "soak-kills.png",
)


@dataclass(frozen=True)
class Second:
    """The requests that were due in one second."""

    second: int
    requests: int
    failed: int
    by_policy: float | None  # share of decisions; None: no response
    p50_ms: float | None  # of successful requests
    p99_ms: float | None


@dataclass(frozen=True)
class Kill:
    """A killed process, and the requests that were under way from then on."""

    time_s: float  # since the begin of the load
    kind: str
    deployment: str
    replaced_s: float | None  # None: not replaced
    longest_ms: float | None  # None: no successful request
    failed: int
    by_policy: float | None


class KillSoak(NamedTuple):
    requests: list[Request]
    kills: list[Kill]


def run_kill_soak(
    server: BenchServer,
    seconds: float,
    every_s: float,
    report_step: Callable[[str], None],
    rate: float = RATE,
) -> KillSoak:
    """Load all systems, `rate` requests/s each, and kill a process every `every_s`."""
    report_step("wait for all gateways and workers")
    wait_until_complete(server)
    bodies = {
        system: tuple(server.body(system, example) for example in EXAMPLES)
        for system in server.systems
    }
    load = ClientLoad(server.url, bodies, TENANTS, rate * len(bodies), seconds)
    report_step(f"load for {seconds / 60:g} minutes, a kill every {every_s:g} s")
    with running_load(load) as report:
        killed = kill_in_turn(
            server.settings, every_s, seconds, lambda one: report_step(in_words(one))
        )
        return kill_soak(report(), killed)


def in_words(one: Killed) -> str:
    after = "not replaced" if one.replaced_s is None else f"replaced after {one.replaced_s:.1f} s"
    name = one.kind if one.kind == one.deployment else f"{one.kind} of {one.deployment}"
    return f"killed: {name}, {after}"


def kill_soak(report: ClientReport, killed: Iterable[Killed]) -> KillSoak:
    """Join kills with the requests during and after each."""
    kills = []
    for one in killed:
        since_s = one.time - report.began
        until_s = math.inf if one.replaced_s is None else since_s + one.replaced_s + AFTER_S
        near = [
            request
            for request in report.requests
            if request.start_s < until_s and request.start_s + request.latency_ms / 1000 > since_s
        ]
        latencies = [request.latency_ms for request in near if request.source]
        kills.append(
            Kill(
                time_s=since_s,
                kind=one.kind,
                deployment=one.deployment,
                replaced_s=one.replaced_s,
                longest_ms=max(latencies, default=None),
                failed=len(near) - len(latencies),
                by_policy=policy_share(near),
            )
        )
    return KillSoak(report.requests, kills)


def policy_share(requests: Sequence[Request]) -> float | None:
    """Share of the policy in the decisions; None without any."""
    sources = [request.source for request in requests if request.source]
    return sources.count(POLICY) / len(sources) if sources else None


def seconds_of(requests: Sequence[Request]) -> Iterator[Second]:
    by_second: dict[int, list[Request]] = {}
    for request in requests:
        by_second.setdefault(int(request.start_s), []).append(request)
    for second, found in sorted(by_second.items()):
        ordered = sorted(request.latency_ms / 1000 for request in found if request.source)
        yield Second(
            second,
            len(found),
            len(found) - len(ordered),
            policy_share(found),
            percentile_ms(ordered, 50),
            percentile_ms(ordered, 99),
        )


@dataclass(frozen=True)
class KillsResult:
    """Totals. Latencies are those of successful requests, from their intended start."""

    requests: int
    failed: int
    errors: dict[str, int]  # failed requests by cause
    by_policy: float
    by_rule: dict[str, int]  # decisions of the rule by cause
    p50_ms: float
    p99_ms: float
    longest_ms: float
    kills: int
    replaced: int

    @property
    def holds(self) -> bool:
        return self.requests > 0 and self.failed == 0 and 0 < self.kills == self.replaced

    @property
    def line(self) -> str:
        return (
            f"{'holds' if self.holds else 'does not hold'}: {self.failed:,} of {self.requests:,} "
            f"requests failed, {100 * self.by_policy:.1f}% decided by the policy; p50 "
            f"{self.p50_ms:.1f} ms, p99 {self.p99_ms:.0f} ms, longest {self.longest_ms:,.0f} ms; "
            f"{self.replaced} of {self.kills} killed processes were replaced"
        )


def kills_result(soak: KillSoak) -> KillsResult:
    ordered = sorted(one.latency_ms / 1000 for one in soak.requests if one.source)
    p50, p99, longest = (percentile_ms(ordered, percent) or math.nan for percent in (50, 99, 100))
    errors = Counter(one.cause for one in soak.requests if not one.source)
    rules = Counter(one.cause for one in soak.requests if one.source not in ("", POLICY))
    return KillsResult(
        requests=len(soak.requests),
        failed=errors.total(),
        errors=dict(errors.most_common()),
        by_policy=policy_share(soak.requests) or 0.0,
        by_rule=dict(rules.most_common()),
        p50_ms=p50,
        p99_ms=p99,
        longest_ms=longest,
        kills=len(soak.kills),
        replaced=sum(one.replaced_s is not None for one in soak.kills),
    )


def summary_of(soak: KillSoak, result: KillsResult) -> dict[str, object]:
    kinds = {kind: [one for one in soak.kills if one.kind == kind] for kind in KINDS}
    return {
        "holds": result.holds,
        **asdict(result),
        "seed": SEED,
        "gateways": REPLICAS,
        "workers_of_each_system": REPLICAS,
        "tenants": TENANTS,
        "by_kind": {kind: _of_kind(found) for kind, found in kinds.items() if found},
    }


def _of_kind(kills: Sequence[Kill]) -> dict[str, float | int | None]:
    replaced = [one.replaced_s for one in kills if one.replaced_s is not None]
    longest = [one.longest_ms for one in kills if one.longest_ms is not None]
    return {
        "kills": len(kills),
        "failed": sum(one.failed for one in kills),
        "replaced_s_median": median(replaced) if replaced else None,
        "replaced_s_most": max(replaced, default=None),
        "longest_ms_median": median(longest) if longest else None,
        "longest_ms_most": max(longest, default=None),
    }


def write_kill_soak(soak: KillSoak, title: str, folder: Path) -> KillsResult:
    """Replace tables, summary and chart atomically; return the result."""
    result, seconds = kills_result(soak), list(seconds_of(soak.requests))
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in ((TABLE, seconds), (KILLS, soak.kills)):
        with atomic_text_file(folder / name) as file:
            pd.DataFrame(rows).round(3).to_csv(file, index=False, lineterminator="\n")
    with atomic_text_file(folder / SUMMARY) as file:
        json.dump(summary_of(soak, result), file, indent=2)
        file.write("\n")
    charts.save(folder / CHART, lambda: draw_kill_soak(seconds, soak.kills, title))
    return result


def draw_kill_soak(seconds: Sequence[Second], kills: Sequence[Kill], title: str) -> Figure:
    figure = Figure(figsize=(10, 6), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    latency, share = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.4))
    for name, colour, width in (("p50", charts.INK, 1.4), ("p99", charts.QUIET, 1.0)):
        _line(latency, seconds, f"{name}_ms", colour, width, name)
    _line(share, seconds, "by_policy", charts.LEARNED_COLOUR, 1.4, "by the policy")
    for kind, colour in zip(KINDS, charts.PALETTE[1:], strict=False):
        marked = [one.time_s / 60 for one in kills if one.kind == kind]
        for axes in (latency, share):
            for number, minute in enumerate(marked):
                label = f"{kind} killed" if axes is latency and not number else None
                axes.axvline(minute, color=colour, linestyle=(0, (4, 3)), zorder=0, label=label)
    if failed := [row for row in seconds if row.failed]:
        ones = [row.second / 60 for row in failed], [1.0] * len(failed)
        share.scatter(*ones, color=charts.PALETTE[6], marker="x", label="failed requests")
    for axes, heading, unit in (
        (latency, "Latency from the intended start, with retries", "ms"),
        (share, "Decisions by the policy", "share"),
    ):
        axes.set_title(heading, loc="left", fontsize=11)
        axes.set_ylabel(unit)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
    latency.set(yscale="log")
    charts.plain_log(latency.yaxis, labels=6)
    share.set(ylim=(0, 1.08), xlabel="minutes")
    return figure


def _line(
    axes: Axes, seconds: Sequence[Second], column: str, colour: str, width: float, label: str
) -> None:
    known = [(row.second / 60, y) for row in seconds if (y := getattr(row, column)) is not None]
    if known:
        axes.plot(*zip(*known, strict=True), color=colour, linewidth=width, label=label)
