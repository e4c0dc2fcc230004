"""The replay page: one HTML file with data, style and script inside; it asks nobody for more."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Sequence
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from loadmaster.envs.errors import InputError
from loadmaster.platform.replay.headline import (
    headline,
    jobs_seen,
    makespan_s,
    mean_jct_s,
    unfinished_note,
)
from loadmaster.platform.replay.packing import pack_schedule

if TYPE_CHECKING:
    from loadmaster.envs.dag_scheduling.episode import EpisodeResult

MAX_POLICIES = 2
MAX_ROWS = 5_000_000  # a page of about 20 MB, which a browser still opens and paints smoothly

# In the order in which they are joined; page.js comes last, as it starts the others.
SCRIPTS = ("data", "figures", "palette", "view", "gantt", "charts", "jobs", "player", "page")


def build_page(results: Sequence[EpisodeResult], job_names: Sequence[str], title: str) -> str:
    """The page for one or two recorded episodes on the same jobs; names in order of arrival."""
    _check(results, job_names)
    assets = files("loadmaster.platform.replay")
    style = assets.joinpath("page.css").read_text(encoding="utf-8")
    parts = [assets.joinpath(f"script/{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    script = '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"
    data = json.dumps(_page_data(results, job_names), separators=(",", ":"), allow_nan=False)
    page = Template(assets.joinpath("page.html").read_text(encoding="utf-8"))
    return page.substitute(
        title=html.escape(title),
        security=_security_policy(style, script),
        headline=headline(results, as_html=True),
        note=html.escape(unfinished_note(results)),
        style=style,
        script=script,
        data=data.replace("<", "\\u003c"),  # a job called </script> stays a name
    )


def _check(results: Sequence[EpisodeResult], job_names: Sequence[str]) -> None:
    if not 1 <= len(results) <= MAX_POLICIES:
        raise InputError(f"{len(results)} policies to replay; expected one or two")
    first = results[0]
    if len(job_names) != len(first.arrival_s):
        raise ValueError(f"{len(job_names)} names for {len(first.arrival_s)} jobs")
    rows = 0
    for result in results:
        same = np.array_equal(result.arrival_s, first.arrival_s)
        if not same or not np.array_equal(result.template, first.template):
            raise ValueError("the episodes ran different jobs; a comparison needs the same ones")
        if result.trace is None:
            raise ValueError(f"the episode of {result.policy!r} was not recorded")
        rows += len(result.trace.start_ms)
    if rows > MAX_ROWS:
        raise InputError(
            f"{rows:,} tasks and moves are too many for one page; expected at most {MAX_ROWS:,}: "
            "replay fewer jobs (--set jobs=...) or one policy"
        )


def _page_data(results: Sequence[EpisodeResult], job_names: Sequence[str]) -> dict[str, Any]:
    first, jobs = results[0], jobs_seen(results)
    return {
        "executors": first.executors,
        "jobs": {
            "name": list(job_names[:jobs]),
            "arrival_s": first.arrival_s[:jobs].tolist(),
            "work_s": first.work_s[:jobs].tolist(),
        },
        "policies": [_policy_data(result, jobs) for result in results],
    }


def _policy_data(result: EpisodeResult, jobs: int) -> dict[str, Any]:
    trace = result.trace
    assert trace is not None
    # A task that the horizon cut off counts up to there.
    spent_ms = np.minimum(trace.end_ms, result.end_s * 1000) - trace.start_ms
    offered_ms = result.executors * result.end_s * 1000
    return {
        "name": result.policy,
        "mean_jct_s": none_for_nan(mean_jct_s(result)),
        "makespan_s": none_for_nan(makespan_s(result)),
        "end_s": result.end_s,
        "utilisation": float(spent_ms[trace.moving == 0].sum()) / max(offered_ms, 1.0),
        "completion_s": [none_for_nan(s) for s in result.completion_s[:jobs].tolist()],
        "schedule": pack_schedule(trace),
    }


def none_for_nan(value: float) -> float | None:
    """JSON knows no nan."""
    return None if math.isnan(value) else value


def _security_policy(style: str, script: str) -> str:
    """No network at all, and no script or style but our own: a job's name can never run as code."""

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        f"default-src 'none'; style-src 'sha256-{digest(style)}'; "
        f"script-src 'sha256-{digest(script)}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
