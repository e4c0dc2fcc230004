"""The interface between the replay page and an environment, with helpers for its texts and data."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from loadmaster.platform.evaluation.adapters import environment_part

if TYPE_CHECKING:
    from loadmaster.envs.dag_scheduling.episode import ScheduleTrace


class Outcome(Protocol):
    """A recorded episode and its N jobs in order of arrival."""

    @property
    def policy(self) -> str: ...
    @property
    def arrival_s(self) -> NDArray[np.float64]: ...  # (N,)
    @property
    def completion_s(self) -> NDArray[np.float64]: ...  # (N,) nan: not completed
    @property
    def mean_jct_s(self) -> float: ...  # of completed jobs; nan: none
    @property
    def end_s(self) -> float: ...


class Unit(NamedTuple):
    """A unit of time on the page."""

    seconds: int
    name: str


SECOND = Unit(1, "s")


def summary_line(
    results: Sequence[Outcome],
    as_html: bool = False,
    unit: Unit = SECOND,
    suffixes: Sequence[str] | None = None,
) -> str:
    """The comparison in one sentence; in HTML, policy names get a class for their colour.

    `suffixes` holds a suffix for each policy's mean: " for $3".
    """
    names = [result.policy for result in results]
    if as_html:
        names = [f'<b class="policy-{i}">{html.escape(name)}</b>' for i, name in enumerate(names)]
    means = [result.mean_jct_s / unit.seconds for result in results]
    # No decimals, unless rounding would hide the difference.
    known = [mean for mean in means if not math.isnan(mean)]
    plain = min(known, default=0) >= 10 and len({round(mean) for mean in known}) == len(known)
    space = "&nbsp;" if as_html else " "
    outcomes = [
        "no job"
        if math.isnan(mean)
        else f"the average job in {mean:,.{0 if plain else 1}f}{space}{unit.name}{suffix}"
        for mean, suffix in zip(means, suffixes or [""] * len(results), strict=True)
    ]
    jobs = count(jobs_arrived(results), "job")
    if len(results) == 1:
        return f"{names[0]} finishes {outcomes[0]}, of {jobs}"
    if len(known) == len(means):
        outcomes[1] = outcomes[1].removeprefix("the average job ")
    return f"{names[0]} finishes {outcomes[0]}, {names[1]} {outcomes[1]}, on the same {jobs}"


def unfinished_note(results: Sequence[Outcome], unit: Unit = SECOND) -> str:
    """A note on jobs that did not finish, which no mean includes; empty if all did."""
    arrived = jobs_arrived(results)
    left = [int(np.isnan(result.completion_s[:arrived]).sum()) for result in results]
    if not any(left):
        return ""
    parts = [f"{count(n, 'job')} under {r.policy}" for n, r in zip(left, results, strict=True)]
    end = max(result.end_s for result in results) / unit.seconds
    return f"Unfinished when the episode ends at {end:,.0f} {unit.name}: {', '.join(parts)}."


def makespan_s(result: Outcome) -> float:
    """When the last job finished; nan if one did not."""
    return math.nan if np.isnan(result.completion_s).any() else result.end_s


def jobs_arrived(results: Sequence[Outcome]) -> int:
    """Number of jobs that arrived before the episodes ended."""
    end_s = max(result.end_s for result in results)
    return int(np.searchsorted(results[0].arrival_s, end_s, side="right"))


def count(number: int, noun: str) -> str:
    """A number with its noun: "1 job", "2,000 jobs"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


Packed = dict[str, int | str]


def pack_schedule(trace: ScheduleTrace) -> Packed:
    """Compress a trace to about two bytes a task; `script/data.js` decodes it.

    A stint is a run of tasks that one executor takes from one stage without a pause. The result
    holds columns of the stints, in order of executor and time, and the duration of every task.
    """
    # Sort by end too: a row of zero length comes before the row that starts at the same time.
    order = np.lexsort((trace.end_ms, trace.start_ms, trace.executor))
    executor = trace.executor[order].astype(np.int64)
    job = trace.job[order].astype(np.int64)
    kind = trace.stage[order].astype(np.int64) * 2 + trace.moving[order]
    start, end = trace.start_ms[order], trace.end_ms[order]

    same_executor = np.concatenate([[False], executor[1:] == executor[:-1]])
    free_at = np.where(same_executor, np.concatenate([[0], end[:-1]]), 0)
    gap = start - free_at
    if (gap < 0).any() or (end < start).any():
        raise ValueError("an executor runs two tasks at once, or a task ends before it starts")
    same_stint = same_executor & (gap == 0)
    same_stint[1:] &= (job[1:] == job[:-1]) & (kind[1:] == kind[:-1])
    first = np.flatnonzero(~same_stint)
    return {
        "rows": len(order),
        "stints": len(first),
        "executor": pack(executor[first]),
        "gap_ms": pack(gap[first]),  # since the executor's previous stint, or since 0
        "job": pack(job[first]),
        "kind": pack(kind[first]),  # stage * 2, + 1 for a move
        "length": pack(np.diff(first, append=len(order))),
        "duration_ms": pack(end - start),
    }


def pack(values: NDArray[np.int64]) -> str:
    """Encode non-negative numbers as LEB128 (seven bits a byte) in base64."""
    largest = int(values.max(initial=0))
    places = max(1, -(-largest.bit_length() // 7))
    groups = values[:, None] >> (7 * np.arange(places))  # (values, places) low bits first
    used = groups > 0
    used[:, 0] = True  # a zero takes one byte
    more = np.zeros_like(used)
    more[:, :-1] = used[:, 1:]
    coded = ((groups & 0x7F) | (more * 0x80)).astype(np.uint8)
    return base64.b64encode(coded[used].tobytes()).decode()


DAG_SCHEDULING = "dag_scheduling"


@dataclass(frozen=True)
class ReplayAdapter:
    """An environment that can be replayed.

    `Any` stands for the environment's own types: its settings, its workload, and its outcome, an
    `Outcome` with more fields. The page's HTML parts are in `parts/ENVIRONMENT`, its script is
    `script/ENVIRONMENT/main.js`.
    """

    environment: str
    default_policies: tuple[str, str]
    sections: tuple[str, ...]  # parts of the page below the charts
    counted: str  # caption of the chart below the schedules: which jobs it counts
    rows_are: str  # what a row of a schedule is, in the plural

    load: Callable[[Any], Any]  # settings -> workload
    # name, learned policy or None, settings, seed, workload, whether to record -> outcome
    run: Callable[[str, Any, Any, int, Any, bool], Any]
    opponents: Callable[[Any], Sequence[str]]  # settings -> baselines to compare a policy with
    cost: Callable[[Any, Any], float]  # settings, outcome -> cost that picks the best baseline
    title: Callable[[Any, int, Any], str]  # settings, seed, workload
    job_names: Callable[[Any, Any], tuple[str, ...]]  # workload, outcome

    rows: Callable[[Any], int]  # outcome -> rows of its schedule
    cluster_data: Callable[[Sequence[Any]], dict[str, Any]]  # outcomes -> what policies share
    job_data: Callable[[Any, int], dict[str, Any]]  # outcome, number of jobs -> columns
    policy_data: Callable[[Any, int], dict[str, Any]]  # outcome, number of jobs
    figures: Callable[[Any], Mapping[str, float]]  # outcome -> figures for --json
    unit: Callable[[Sequence[Any]], Unit] = lambda outcomes: SECOND
    summary_suffix: Callable[[Any], str] = lambda outcome: ""  # of the summary line
    # outcomes, title, file, format: draws decisions of a learned policy; None: not supported
    picture: Callable[[Sequence[Any], str, IO[bytes], str], None] | None = None
    most_rows: int | None = None  # limit below MAX_ROWS of page.py


def find_replay_adapter(environment: str) -> ReplayAdapter:
    return cast(ReplayAdapter, environment_part(environment, "replay"))
