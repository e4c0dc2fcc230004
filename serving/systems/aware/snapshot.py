"""From a state to the simulator's tables, which the policy observes as in training.

A state that is not consistent is refused by a ValidationError that names the field.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.pod_scaling import state as cols
from loadmaster.envs.pod_scaling.observation import blank_observation, observe
from loadmaster.envs.pod_scaling.settings import INTERVAL_S, STEP_INTERVALS, Discipline, Routing
from loadmaster.envs.pod_scaling.snapshot import REPORTS_MAX, PodSnapshot, state_from_snapshot
from loadmaster.envs.pod_scaling.state import Floats, SimConstants, SimState
from loadmaster.serving.system import field_error
from loadmaster.serving.systems.aware.records import Bounds, Plan, Reports, Steps

CORE_M = 1000.0  # thousandths of a core


class ApplicationFields(Protocol):
    """The fields of a state."""

    @property
    def slo_s(self) -> float: ...
    @property
    def bounds(self) -> Bounds: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def reports(self) -> Reports: ...
    @property
    def steps(self) -> Steps: ...
    @property
    def routing(self) -> Routing: ...
    @property
    def discipline(self) -> Discipline: ...


class Column(NamedTuple):
    """A column of reports, the simulator's, and the factor between their units."""

    name: str
    metric: int
    factor: float = 1.0


COUNTS = (Column("pods", cols.R_PODS), Column("ready", cols.R_READY))
METRICS = (
    Column("used_cpu_m", cols.R_USED_CORES, 1 / CORE_M),
    Column("limit_cpu_m", cols.R_LIMIT_CORES, 1 / CORE_M),
    Column("used_memory_mib", cols.R_USED_MIB),
    Column("limit_memory_mib", cols.R_LIMIT_MIB),
    Column("peak_memory_mib", cols.R_PEAK_MIB),
    Column("disk_mb_s", cols.R_DISK_MB_S),
    Column("network_mb_s", cols.R_NETWORK_MB_S),
    Column("requests", cols.R_REQUESTS),
    Column("ooms", cols.R_OOMS),
)
NOTED = ("disk_mb_s", "network_mb_s", "ooms")  # whose absence changes decisions


@dataclass(frozen=True, eq=False)
class ParsedApplication:
    """A state in tables."""

    snapshot: PodSnapshot
    notes: tuple[str, ...]  # values that were not reported, and what was taken instead

    @cached_property
    def observation(self) -> NDArray[np.float32]:
        """As the environment's; see `STATE_COLUMNS`."""
        return _observation(*state_from_snapshot(self.snapshot))

    def tables(self) -> tuple[SimConstants, SimState]:
        """Tables to decide on, which a policy may change. The observation is made of them first:
        making tables takes 0.1 ms."""
        constants, state = state_from_snapshot(self.snapshot)
        if "observation" not in self.__dict__:
            self.__dict__["observation"] = _observation(constants, state)
        return constants, state


def _observation(constants: SimConstants, state: SimState) -> NDArray[np.float32]:
    view = blank_observation()
    observe(constants, state, view)
    return view.state


def parse_application(state: ApplicationFields) -> ParsedApplication:
    """Check the state and lay it out; the first fault is raised as a ValidationError."""
    _check_shapes(state)
    _check_limits(state.reports)
    bounds, plan = state.bounds, state.plan
    low, high = (
        np.array([bounds.cpu_m[end] / CORE_M, bounds.memory_mib[end], bounds.replicas[end]])
        for end in (0, 1)
    )
    p99_s, of_p99 = _latencies(state)
    reports = _reports(state.reports)
    snapshot = PodSnapshot(
        slo_s=state.slo_s,
        low=low,
        high=high,
        plan=np.array([plan.cpu_m / CORE_M, plan.memory_mib, plan.replicas]),
        reports=reports,
        requests=np.array(state.steps.requests, np.float64),
        p99_s=p99_s,
        restarts=np.array(state.steps.restarts, np.float64),
        ooms=_ooms(state, reports),
        routing=state.routing,
        discipline=state.discipline,
    )
    if not (snapshot.reports[:, cols.R_SEEN] > 0).any():
        why = "no row of the last hour is without a null; expected at least one report"
        raise field_error(("reports",), why)
    return ParsedApplication(snapshot, (*_plan_notes(state), *_report_notes(state), *of_p99))


def _check_shapes(state: ApplicationFields) -> None:
    for name in ("replicas", "cpu_m", "memory_mib"):
        least, most = getattr(state.bounds, name)
        if least > most:
            why = f"{least:g} is above {most:g}; expected the least first"
            raise field_error(("bounds", name), why)
    ages = state.reports.age_s
    for row, (older, newer) in enumerate(pairwise(ages), start=1):
        if newer >= older:
            why = f"{newer:g} after {older:g}; expected the oldest report first"
            raise field_error(("reports", "age_s", row), why)
    for column in (*COUNTS, *METRICS, Column("seen", cols.R_SEEN)):
        values = getattr(state.reports, column.name)
        if values is not None and len(values) != len(ages):
            why = f"{len(values)} values; expected {len(ages)}, as many as age_s"
            raise field_error(("reports", column.name), why)
    for name in ("p99_s", "restarts", "ooms"):
        values, steps = getattr(state.steps, name), len(state.steps.requests)
        if values is not None and len(values) != steps:
            why = f"{len(values)} values; expected {steps}, as many as requests"
            raise field_error(("steps", name), why)


def _check_limits(reports: Reports) -> None:
    """Raise for use without a limit: of pods without limits no share of them is used."""
    for used, limit in (("used_cpu_m", "limit_cpu_m"), ("used_memory_mib", "limit_memory_mib")):
        pairs = zip(getattr(reports, used), getattr(reports, limit), strict=True)
        for row, (amount, most) in enumerate(pairs):
            if most == 0 and amount:
                why = f"0 with {amount:g} used; expected the sum of the pods' limits"
                raise field_error(("reports", limit, row), why)


def _reports(reports: Reports) -> Floats:
    """(R, REPORT_COLUMNS) by interval; of two reports in one interval the later counts."""
    ages = np.rint(np.array(reports.age_s) / INTERVAL_S).astype(np.int64)
    rows = min(int(ages[0]) + 1, REPORTS_MAX)
    kept = ages < rows
    table = np.zeros((len(ages), cols.REPORT_COLUMNS))
    table[:, cols.R_SEEN] = 1.0 if reports.seen is None else reports.seen
    for column in (*COUNTS, *METRICS):
        values = getattr(reports, column.name)
        if values is not None:
            table[:, column.metric] = np.array(values, np.float64) * column.factor
    table[np.isnan(table).any(axis=1), cols.R_SEEN] = 0.0
    unknown = np.isnan(table[:, [cols.R_PODS, cols.R_READY]]).any(axis=1)
    table[unknown, cols.R_PODS] = table[unknown, cols.R_READY] = np.nan
    table[:, cols.R_READY] = np.minimum(table[:, cols.R_READY], table[:, cols.R_PODS])
    table[:, cols.R_READY + 1 :] = np.nan_to_num(table[:, cols.R_READY + 1 :])
    found = np.zeros((rows, cols.REPORT_COLUMNS))
    found[:, [cols.R_PODS, cols.R_READY]] = np.nan
    found[rows - 1 - ages[kept]] = table[kept]
    return found


def _latencies(state: ApplicationFields) -> tuple[Floats, tuple[str, ...]]:
    """(S,) the p99 of every step, 0 without requests; notes on those that are unknown.

    A step with requests and no p99 has that of the step before; before all others, the SLO.
    """
    found, last, unknown = [], state.slo_s, 0
    for requests, p99_s in zip(state.steps.requests, state.steps.p99_s, strict=True):
        if p99_s is None and requests > 0:
            unknown += 1
        elif p99_s is not None:
            last = p99_s
        found.append(0.0 if p99_s is None and requests == 0 else last)
    taken = f"p99 of {unknown} steps with requests not reported: taken from the step before"
    return np.array(found), (taken,) if unknown else ()


def _ooms(state: ApplicationFields, reports: Floats) -> Floats:
    """(S,) containers killed in every step; where not given, by the reports up to the newest."""
    found = np.zeros(len(state.steps.requests))
    if state.steps.ooms is not None:
        found[:] = state.steps.ooms
        return found
    seen = np.flatnonzero(reports[:, cols.R_SEEN] > 0)
    last = reports[: seen[-1] + 1, cols.R_OOMS] if len(seen) else np.zeros(0)
    for back in range(1, len(found) + 1):
        end = len(last) - (back - 1) * STEP_INTERVALS
        found[-back] = last[max(end - STEP_INTERVALS, 0) : max(end, 0)].sum()
    return found


def _plan_notes(state: ApplicationFields) -> Iterator[str]:
    for name in ("replicas", "cpu_m", "memory_mib"):
        now, (least, most) = getattr(state.plan, name), getattr(state.bounds, name)
        if not least <= now <= most:
            yield f"{name} of the plan is {now:g}, outside of its bounds {least:g} to {most:g}"


def _report_notes(state: ApplicationFields) -> Iterator[str]:
    reports = state.reports
    missing = [name for name in NOTED if getattr(reports, name) is None]
    if missing:
        yield f"{', '.join(missing)} not reported: taken as 0"
    pairs = zip(reports.pods, reports.ready, strict=True)
    if any(pods is not None and ready is not None and ready > pods for pods, ready in pairs):
        yield "more pods ready than there are: taken as all of them"
    if reports.age_s[0] >= REPORTS_MAX * INTERVAL_S:
        yield "reports older than an hour are not used"
