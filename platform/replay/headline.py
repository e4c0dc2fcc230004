"""The outcome of the recorded episodes in words."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


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


def headline(
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
