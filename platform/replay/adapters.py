"""The interface between the replay page and an environment, with helpers for its texts and data."""

from __future__ import annotations

import base64
import html
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    steps: tuple[int, ...] = ()  # between labels of the time axis; empty: 1, 2, 5, 10, 20, ...


SECOND = Unit(1, "s")
UNITS = (Unit(3600, "h"), Unit(60, "min"), SECOND)
UNITS_SHOWN = 3  # of a unit at least, else a smaller one is chosen


def unit_data(unit: Unit) -> dict[str, Any]:
    """The unit as the script reads it."""
    return {name: value for name, value in unit._asdict().items() if value != ()}


def unit_of(end_s: float, units: Sequence[Unit] = UNITS) -> Unit:
    """Unit of the time axis of an episode of that length."""
    return next((each for each in units if end_s >= UNITS_SHOWN * each.seconds), units[-1])


def summary_line(
    results: Sequence[Outcome],
    as_html: bool = False,
    unit: Unit = SECOND,
    suffixes: Sequence[str] | None = None,
) -> str:
    """The comparison in one sentence; in HTML, policy names get a class for their colour.

    `suffixes` holds a suffix for each policy's mean: " for $3".
    """
    names = policy_names(results, as_html)
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


def policy_names(results: Sequence[Any], as_html: bool) -> list[str]:
    """Names of the policies; in HTML with a class for their colour."""
    names = [result.policy for result in results]
    if not as_html:
        return names
    return [f'<b class="policy-{i}">{html.escape(name)}</b>' for i, name in enumerate(names)]


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


class Chart(NamedTuple):
    """A chart with a line for each policy; `script/` paints it by its id."""

    id: str
    title: str
    above: bool = False  # of the policies' panels


class DecisionButton(NamedTuple):
    """The button that leads to the next decision of a kind."""

    name: str  # its id is decision-NAME
    text: str
    title: str


@dataclass(frozen=True, kw_only=True)
class ReplayAdapter(ABC):
    """An environment that can be replayed: what its page shows for each policy over time.

    A page has a plot for each policy, whose rows belong to items (jobs or tasks), charts that
    compare the policies, a table of the items and, with `decisions`, those of a learned policy.
    `Any` stands for the environment's own types: its settings, its workload, and its outcome, which
    has the fields `policy` and `end_s`. The page's HTML parts are in `parts/ENVIRONMENT`, its
    script is `script/ENVIRONMENT/main.js`.
    """

    environment: str
    default_policies: tuple[str, str]
    item: str  # in the singular
    plots: str  # what the plots show
    charts: tuple[Chart, ...]
    difference: str  # in what the button "widest gap" finds the largest difference
    rows_are: str  # what a row of a plot is, in the plural
    fewer: str  # how to replay fewer rows
    decisions: DecisionButton | None = None
    picture_needs_learned: bool = True

    load: Callable[[Any], Any]  # settings -> workload
    # name, learned policy or None, settings, seed, workload, whether to record -> outcome
    run: Callable[[str, Any, Any, int, Any, bool], Any]
    opponents: Callable[[Any], Sequence[str]]  # settings -> baselines to compare a policy with
    cost: Callable[[Any, Any], float]  # settings, outcome -> cost that picks the best baseline
    title: Callable[[Any, int, Any], str]  # settings, seed, workload
    item_names: Callable[[Any, Any], tuple[str, ...]]  # workload, outcome

    rows: Callable[[Any], int]  # outcome -> rows of its plot
    figures: Callable[[Any], Mapping[str, float]]  # outcome -> figures for --json
    unit: Callable[[Sequence[Any]], Unit] = lambda outcomes: SECOND
    # outcomes, title, file, format: draws decisions of a learned policy; None: not supported
    picture: Callable[[Sequence[Any], str, IO[bytes], str], None] | None = None
    # decisions of one tenant in a service's log -> outcome; None: not supported
    logged: Callable[[Iterable[Any]], Any] | None = None
    most_rows: int | None = None  # limit below MAX_ROWS of page.py

    @abstractmethod
    def summary(self, results: Sequence[Any], as_html: bool = False) -> str:
        """The comparison in one sentence."""

    @abstractmethod
    def note(self, results: Sequence[Any]) -> str:
        """A line below it; may be empty."""

    @abstractmethod
    def page_data(self, results: Sequence[Any], item_names: Sequence[str]) -> dict[str, Any]:
        """What the script reads, beside `unit`; `policies` has `name` and `end_s` of each."""


@dataclass(frozen=True, kw_only=True)
class ScheduleAdapter(ReplayAdapter):
    """Jobs on executors or machines; an outcome is an `Outcome` with more fields."""

    cluster_data: Callable[[Sequence[Any]], dict[str, Any]]  # outcomes -> what policies share
    job_data: Callable[[Any, int], dict[str, Any]]  # outcome, number of jobs -> columns
    policy_data: Callable[[Any, int], dict[str, Any]]  # outcome, number of jobs
    summary_suffix: Callable[[Any], str] = lambda outcome: ""  # of the summary line

    def summary(self, results: Sequence[Any], as_html: bool = False) -> str:
        suffixes = [self.summary_suffix(result) for result in results]
        return summary_line(results, as_html, self.unit(results), suffixes)

    def note(self, results: Sequence[Any]) -> str:
        return unfinished_note(results, self.unit(results))

    def page_data(self, results: Sequence[Any], item_names: Sequence[str]) -> dict[str, Any]:
        first, jobs = results[0], jobs_arrived(results)
        return {
            **self.cluster_data(results),
            "jobs": {
                "name": list(item_names[:jobs]),
                "arrival_s": first.arrival_s[:jobs].tolist(),
                **self.job_data(first, jobs),
            },
            "policies": [
                {
                    "name": result.policy,
                    "mean_jct_s": none_for_nan(result.mean_jct_s),
                    "makespan_s": none_for_nan(makespan_s(result)),
                    "end_s": result.end_s,
                    "completion_s": [none_for_nan(s) for s in result.completion_s[:jobs].tolist()],
                    **self.policy_data(result, jobs),
                }
                for result in results
            ],
        }


def schedule_parts(counted: str) -> dict[str, Any]:
    """Fields of a `ScheduleAdapter` whose chart counts jobs: "jobs in the queue"."""
    return {
        "item": "job",
        "plots": "schedules",
        "charts": (Chart("counts", counted.capitalize()),),
        "difference": counted,
        "fewer": "replay fewer jobs (--set jobs=...) or one policy",
    }


def none_for_nan(value: float) -> float | None:
    """Replace nan, which JSON cannot hold."""
    return None if math.isnan(value) else value


def find_replay_adapter(environment: str) -> ReplayAdapter:
    return cast(ReplayAdapter, environment_part(environment, "replay"))
