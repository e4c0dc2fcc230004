"""The decision log of an application as a recorded episode: what was decided, by what, and then.

Time is in control steps. The first one ends at the first decision; a decision at a time t is that
of the step after t, and its outcome is in the states that follow. A state holds up to an hour of
control steps, so that steps without a decision still have load, p99 and restarts.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from loadmaster.envs.errors import InputError
from loadmaster.envs.pod_scaling.episode import EpisodeResult
from loadmaster.envs.pod_scaling.rewards import slo_preservation, step_reward
from loadmaster.envs.pod_scaling.settings import STEP_INTERVALS, STEP_S
from loadmaster.envs.pod_scaling.snapshot import PodSnapshot, default_constants
from loadmaster.envs.pod_scaling.state import (
    CPU,
    MEMORY,
    R_LIMIT_CORES,
    R_LIMIT_MIB,
    R_OOMS,
    R_SEEN,
    R_USED_CORES,
    R_USED_MIB,
    REPLICAS,
    Floats,
)
from loadmaster.models.aware.explain import MARGIN
from loadmaster.models.manifest import visible
from loadmaster.platform.systems.aware.decision_trace import (
    SOURCES,
    STATES,
    Margin,
    RecordedEpisode,
    Step,
    episode_figures,
)
from loadmaster.serving.decisions.request import POLICY
from loadmaster.serving.monitoring.log_files import DecisionRow
from loadmaster.serving.systems.aware.schema import AwareDecision, AwareState
from loadmaster.serving.systems.aware.snapshot import CORE_M

MOST_STEPS = 1_000_000  # between the first decision and the last one
_PLAN = REPLICAS, CPU, MEMORY
_COLUMNS = {"cores": R_USED_CORES, "mib": R_USED_MIB, "cpu": R_LIMIT_CORES, "memory": R_LIMIT_MIB}


class LoggedRow(NamedTuple):
    """A row of the log, parsed."""

    row: DecisionRow
    snapshot: PodSnapshot
    decision: AwareDecision


def recorded_log(rows: Iterable[DecisionRow]) -> RecordedEpisode:
    """The decisions of one tenant in order of time; rows that cannot be read are left out."""
    read = [found for row in rows if (found := _read(row)) is not None]
    if not read:
        raise InputError("no decision of the log can be read; expected states of today's schema")
    read.sort(key=lambda each: each.row.time)
    began = read[0].row.time
    places = [1 + round((each.row.time - began) / STEP_S) for each in read]
    if places[-1] > MOST_STEPS:
        raise InputError(
            f"{places[-1]:,} control steps are too many for one page; expected at most "
            f"{MOST_STEPS:,}: limit them by --since and --until"
        )
    series = _series(read, places)
    name = str(json.loads(read[0].row.state)["application"])
    result = EpisodeResult(policy=name, seed=0, application=name, **_result(series))
    sources, states = (np.zeros(len(series["p99_s"]), np.int64) for _ in range(2))
    for place, each in zip(places, read, strict=True):
        sources[place] = 1 if each.row.source == POLICY else 2
        states[place] = STATES.index(each.row.lifecycle) if each.row.lifecycle in STATES else 0
    return RecordedEpisode(
        **vars(result),
        used_cores=series["used_cores"],
        used_mib=series["used_mib"],
        figures=_figures(result),
        trace=tuple(_step(place, each) for place, each in zip(places, read, strict=True)),
        sources=sources,
        states=states,
    )


def _read(row: DecisionRow) -> LoggedRow | None:
    try:
        state = AwareState.model_validate_json(row.state)
        decision = AwareDecision.model_validate_json(row.decision)
        return LoggedRow(row, state.parsed.snapshot, decision)
    except ValidationError:
        return None


def _series(read: Sequence[LoggedRow], places: Sequence[int]) -> dict[str, Floats]:
    """Columns by control step; NaN where nothing is known."""
    names = (
        "arrived", "p99_s", "slo_s", "restarts", "ooms", "cpu_use", "memory_use", "used_cores",
        "used_mib", "replicas", "cores", "mib",
    )  # fmt: skip
    found = {name: np.full(places[-1] + 1, np.nan) for name in names}
    for place, (_, snapshot, decision) in zip(places, read, strict=True):
        known = min(len(snapshot.requests), place)
        own = slice(place - known, place)
        for name, values in (
            ("arrived", snapshot.requests),
            ("p99_s", snapshot.p99_s),
            ("restarts", snapshot.restarts),
            ("slo_s", np.full(len(snapshot.requests), snapshot.slo_s)),
        ):
            missing = np.isnan(found[name][own])
            found[name][own][missing] = values[-known:][missing]
        _write_use(found, place, snapshot)
        if np.isnan(found["replicas"][place - 1]):  # no decision of then is logged
            _write_plan(found, place - 1, *(float(snapshot.plan[at]) for at in _PLAN))
        plan = decision.replicas, decision.cpu_m / CORE_M, decision.memory_mib
        _write_plan(found, place, *plan)
    found["slo_s"][-1] = read[-1].snapshot.slo_s
    return found


def _write_plan(
    found: dict[str, Floats], place: int, replicas: float, cores: float, mib: float
) -> None:
    found["replicas"][place] = replicas
    found["cores"][place], found["mib"][place] = replicas * cores, replicas * mib


def _write_use(found: dict[str, Floats], place: int, snapshot: PodSnapshot) -> None:
    """Write the use of the steps before `place`, back to those that are known.

    The last step but one is written again: reports are up to a step old when they arrive.
    """
    reports = snapshot.reports
    for back in range(min(len(reports) // STEP_INTERVALS, place)):
        own = place - 1 - back
        if back > 1 and not np.isnan(found["used_cores"][own]):
            return
        end = len(reports) - back * STEP_INTERVALS
        for name, value in _use(reports[end - STEP_INTERVALS : end]).items():
            found[name][own] = value


def _use(reports: Floats) -> dict[str, float]:
    """Means of a control step, where it was reported."""
    seen = reports[reports[:, R_SEEN] > 0]
    if not len(seen):
        return {}
    mean = {name: float(seen[:, column].mean()) for name, column in _COLUMNS.items()}
    return {
        "used_cores": mean["cores"],
        "used_mib": mean["mib"],
        "cpu_use": min(mean["cores"] / mean["cpu"], 1.0) if mean["cpu"] else np.nan,
        "memory_use": min(mean["mib"] / mean["memory"], 1.0) if mean["memory"] else np.nan,
        "ooms": float(seen[:, R_OOMS].sum()),
    }


def _result(series: dict[str, Floats]) -> dict[str, Floats]:
    """Fields of an `EpisodeResult`, with the rewards of the environment's default weights."""
    named = {name: series[name] for name in series if not name.startswith("used_")}
    unknown = np.full(len(series["p99_s"]), np.nan)
    preserved = np.array(
        [
            slo_preservation(slo, p99)
            for slo, p99 in zip(series["slo_s"], series["p99_s"], strict=True)
        ]
    )
    rewards = [
        step_reward(default_constants(), *row)
        for row in zip(preserved, series["cpu_use"], series["memory_use"], strict=True)
    ]
    none = ("served", "timed_out", "lost", "violated", "waiting")
    return {
        **named,
        **dict.fromkeys(none, unknown),
        "preserved": preserved,
        "rewards": np.array(rewards),
    }


def _figures(result: EpisodeResult) -> dict[str, float]:
    """Metrics of the steps whose outcome is known; NaN if there is none."""
    known = ~np.isnan(result.rewards)
    arrays = {
        name: value[known] for name, value in vars(result).items() if isinstance(value, np.ndarray)
    }
    if not known.any():
        return dict.fromkeys(("reward", "violations", "p99_mean", "p99_max"), np.nan)
    return episode_figures(EpisodeResult(**{**vars(result), **arrays}))


def _step(place: int, logged: LoggedRow) -> Step:
    row, decision = logged.row, logged.decision
    reason: dict[str, Any] = json.loads(row.reason)
    options = reason.get("choices", {}).get(MARGIN, [])
    source = SOURCES[1 if row.source == POLICY else 2]
    parts = [f"{source} {row.policy} {row.version}".strip()]
    parts += [f"because of {row.cause}"] if row.cause else []
    parts += [f"lifecycle {row.lifecycle}"] if row.lifecycle else []
    guard = tuple(f"guard: {visible(text)}" for text in row.guard)
    return Step(
        step=place,
        changed=decision.act,
        reason=str(reason.get("summary", "")),
        margins=tuple(Margin(each["name"], float(each["score"]), "", "") for each in options),
        decided=", ".join(map(visible, parts)),
        notes=(*guard, *map(str, reason.get("notes", ()))),
    )
