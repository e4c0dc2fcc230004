"""What the replay must know of an environment. The rest of it knows no environment."""

from __future__ import annotations

import base64
import html
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.errors import InputError

if TYPE_CHECKING:
    from loadmaster.envs.dag_scheduling.episode import ScheduleTrace


# The outcome of the recorded episodes in words.


class Outcome(Protocol):
    """What any recorded episode tells of its N jobs, in order of arrival."""

    @property
    def policy(self) -> str: ...
    @property
    def arrival_s(self) -> NDArray[np.float64]: ...  # (N,)
    @property
    def completion_s(self) -> NDArray[np.float64]: ...  # (N,) nan where it never completed
    @property
    def jct_s(self) -> NDArray[np.float64]: ...  # (N,)
    @property
    def end_s(self) -> float: ...


class Unit(NamedTuple):
    """What times are told in."""

    seconds: int
    name: str


SECOND = Unit(1, "s")


def summary_line(
    results: Sequence[Outcome],
    as_html: bool = False,
    unit: Unit = SECOND,
    beside: Sequence[str] | None = None,
) -> str:
    """The comparison in one sentence; in HTML, each policy's name in its colour.

    `beside` is what else each policy's average job is worth telling of: " for $3".
    """
    names = [result.policy for result in results]
    if as_html:
        names = [f'<b class="policy-{i}">{html.escape(name)}</b>' for i, name in enumerate(names)]
    means = [mean_jct_s(result) / unit.seconds for result in results]
    # Whole ones, unless they would hide the difference.
    known = [mean for mean in means if not math.isnan(mean)]
    plain = min(known, default=0) >= 10 and len({round(mean) for mean in known}) == len(known)
    space = "&nbsp;" if as_html else " "
    told = [f"{mean:,.{0 if plain else 1}f}{space}{unit.name}" for mean in means]
    outcomes = [
        "no job" if math.isnan(mean) else f"the average job in {words}{more}"
        for mean, words, more in zip(means, told, beside or [""] * len(results), strict=True)
    ]
    jobs = count(jobs_seen(results), "job")
    if len(results) == 1:
        return f"{names[0]} finishes {outcomes[0]}, of {jobs}"
    if len(known) == len(means):
        outcomes[1] = outcomes[1].removeprefix("the average job ")
    return f"{names[0]} finishes {outcomes[0]}, {names[1]} {outcomes[1]}, on the same {jobs}"


def unfinished_note(results: Sequence[Outcome], unit: Unit = SECOND) -> str:
    """What the headline leaves out: jobs that were cut off, and so are in no average."""
    seen = jobs_seen(results)
    left = [int(np.isnan(result.completion_s[:seen]).sum()) for result in results]
    if not any(left):
        return ""
    told = [f"{count(n, 'job')} under {r.policy}" for n, r in zip(left, results, strict=True)]
    end = max(result.end_s for result in results) / unit.seconds
    return f"Unfinished when the episode ends at {end:,.0f} {unit.name}: {', '.join(told)}."


def mean_jct_s(result: Outcome) -> float:
    """Over the finished jobs; nan where there are none."""
    finished = result.jct_s[~np.isnan(result.completion_s)]
    return float(finished.mean()) if len(finished) else math.nan


def makespan_s(result: Outcome) -> float:
    """When the last job was done; nan where the horizon came first."""
    return math.nan if np.isnan(result.completion_s).any() else result.end_s


def jobs_seen(results: Sequence[Outcome]) -> int:
    """Jobs that arrived before the episodes ended; a horizon may come before the last arrivals."""
    end_s = max(result.end_s for result in results)
    return int(np.searchsorted(results[0].arrival_s, end_s, side="right"))


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


# A schedule made small enough to travel inside a page.
#
# Rows become stints: an executor's uninterrupted tasks in one stage of one job. A stint is five
# small numbers, a task then only its duration, and numbers are packed seven bits to a byte: about
# two bytes a task, against the 25 of the trace. `script/data.js` is the way back.


Packed = dict[str, int | str]


def pack_schedule(trace: ScheduleTrace) -> Packed:
    """Columns of the stints, in order of executor and time, and the duration of every row."""
    # A zero-length row sorts before the row that starts at the same moment, hence the end too.
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
    """Non-negative numbers as LEB128 in base64: seven bits a byte, the high bit says go on."""
    largest = int(values.max(initial=0))
    places = max(1, -(-largest.bit_length() // 7))
    groups = values[:, None] >> (7 * np.arange(places))  # (values, places) low bits first
    used = groups > 0
    used[:, 0] = True  # a zero is one byte, too
    more = np.zeros_like(used)
    more[:, :-1] = used[:, 1:]
    coded = ((groups & 0x7F) | (more * 0x80)).astype(np.uint8)
    return base64.b64encode(coded[used].tobytes()).decode()


SCENES = {
    "dag_scheduling": "loadmaster.platform.systems.decima.replay",
    "gpu_scheduling": "loadmaster.platform.systems.das.replay",
}
DAG_SCHEDULING = "dag_scheduling"


@dataclass(frozen=True)
class ReplayAdapter:
    """An environment that can be watched.

    Its outcomes are the `Outcome` of headline.py and whatever the environment adds. The page takes
    its parts from `parts/ENVIRONMENT` and its script from `script/ENVIRONMENT`.
    """

    environment: str
    default_policies: tuple[str, str]  # the pair that tells the most at a glance
    scripts: tuple[str, ...]  # of the environment, in the order in which they are joined
    sections: tuple[str, ...]  # parts of the page below the charts that no other replay has
    counted: str  # which jobs the chart below the schedules counts
    rows_are: str  # what a schedule is made of, in the plural

    load: Callable[[Any], Any]  # settings -> the workload
    # name, the learned policy behind it if there is one, settings, seed, workload, recorded
    run: Callable[[str, Any, Any, int, Any, bool], Any]  # -> an outcome
    opponents: Callable[[Any], Sequence[str]]  # settings -> baselines, the best of them to be shown
    cost: Callable[[Any, Any], float]  # settings, outcome -> what the best one has least of
    title: Callable[[Any, int, Any], str]  # settings, seed, workload -> the episode in words
    job_names: Callable[[Any, Any], tuple[str, ...]]  # workload, outcome

    rows: Callable[[Any], int | None]  # of an outcome's schedule; None: it was not recorded
    same_jobs: Callable[[Any, Any], bool]  # two outcomes
    cluster_data: Callable[[Sequence[Any]], dict[str, Any]]  # what all policies share
    job_data: Callable[[Any, int], dict[str, Any]]  # outcome, how many jobs -> columns
    policy_data: Callable[[Any, int], dict[str, Any]]
    figures: Callable[[Any], Mapping[str, float]]  # for scripts: a name and a number
    unit: Callable[[Sequence[Any]], Unit] = lambda outcomes: SECOND
    beside: Callable[[Any], str] = lambda outcome: ""  # in the headline, after its mean JCT
    # outcomes, title, file, kind: draws decisions of a learned policy; None where nothing can
    picture: Callable[[Sequence[Any], str, IO[bytes], str], None] | None = None
    most_rows: int | None = None  # where the page can paint fewer than most pages can


def find_replay_adapter(environment: str) -> ReplayAdapter:
    if environment not in SCENES:
        raise InputError(f"{environment} has no replay; expected {' or '.join(SCENES)}")
    module = importlib.import_module(SCENES[environment])
    return cast(ReplayAdapter, module.scene())
