"""The outcome of the recorded episodes in words."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from loadmaster.envs.dag_scheduling.episode import EpisodeResult


def headline(results: Sequence[EpisodeResult], as_html: bool = False) -> str:
    """The comparison in one sentence; in HTML, each policy's name in its colour."""
    names = [result.policy for result in results]
    if as_html:
        names = [f'<b class="policy-{i}">{html.escape(name)}</b>' for i, name in enumerate(names)]
    means = [mean_jct_s(result) for result in results]
    # Whole seconds, unless they would hide the difference.
    known = [mean for mean in means if not math.isnan(mean)]
    plain = min(known, default=0) >= 10 and len({round(mean) for mean in known}) == len(known)
    space = "&nbsp;" if as_html else " "
    outcomes = [
        "no job" if math.isnan(m) else f"the average job in {m:,.{0 if plain else 1}f}{space}s"
        for m in means
    ]
    jobs = count(jobs_seen(results), "job")
    if len(results) == 1:
        return f"{names[0]} finishes {outcomes[0]}, of {jobs}"
    if len(known) == len(means):
        outcomes[1] = outcomes[1].removeprefix("the average job ")
    return f"{names[0]} finishes {outcomes[0]}, {names[1]} {outcomes[1]}, on the same {jobs}"


def unfinished_note(results: Sequence[EpisodeResult]) -> str:
    """What the headline leaves out: jobs that were cut off, and so are in no average."""
    seen = jobs_seen(results)
    left = [int(np.isnan(result.completion_s[:seen]).sum()) for result in results]
    if not any(left):
        return ""
    told = [f"{count(n, 'job')} under {r.policy}" for n, r in zip(left, results, strict=True)]
    end_s = max(result.end_s for result in results)
    return f"Unfinished when the episode ends at {end_s:,.0f} s: {', '.join(told)}."


def mean_jct_s(result: EpisodeResult) -> float:
    """Over the finished jobs; nan where there are none."""
    finished = result.jct_s[~np.isnan(result.completion_s)]
    return float(finished.mean()) if len(finished) else math.nan


def makespan_s(result: EpisodeResult) -> float:
    """When the last job was done; nan where the horizon came first."""
    return math.nan if np.isnan(result.completion_s).any() else result.end_s


def jobs_seen(results: Sequence[EpisodeResult]) -> int:
    """Jobs that arrived before the episodes ended; a horizon may come before the last arrivals."""
    end_s = max(result.end_s for result in results)
    return int(np.searchsorted(results[0].arrival_s, end_s, side="right"))


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
