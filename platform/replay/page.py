"""The replay page: one HTML file with data, style and script inside, which needs no network."""

import html
import math
from collections.abc import Sequence
from importlib.resources import files
from string import Template
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.platform.replay import adapters
from loadmaster.serving.console.page_bundle import bundle_modules, offline_page

MAX_ROWS = 5_000_000  # a page of about 20 MB, which browsers still paint smoothly


def build_page(
    results: Sequence[adapters.Outcome],
    job_names: Sequence[str],
    title: str,
    environment: str = adapters.DAG_SCHEDULING,
) -> str:
    """Build the page for one or two recorded episodes; `job_names` are in order of arrival."""
    adapter = adapters.find_replay_adapter(environment)
    most = MAX_ROWS if adapter.most_rows is None else min(MAX_ROWS, adapter.most_rows)
    if (rows := sum(map(adapter.rows, results))) > most:
        raise InputError(
            f"{rows:,} {adapter.rows_are} are too many for one page; expected at most {most:,}: "
            "replay fewer jobs (--set jobs=...) or one policy"
        )
    unit = adapter.unit(results)
    modules = files("loadmaster.platform.replay").joinpath("script")
    script = bundle_modules(modules, f"{environment}/main.js")
    style = _asset("page.css") + _asset(f"parts/{environment}/style.css")
    content = Template(_asset("page.html")).substitute(
        counted=adapter.counted,
        counted_title=adapter.counted.capitalize(),
        panel=_asset(f"parts/{environment}/panel.html"),
        sections="".join(_asset(f"parts/{environment}/{name}.html") for name in adapter.sections),
        legend=_asset(f"parts/{environment}/legend.html"),
    )
    return offline_page(
        content,
        style,
        script,
        "replay-data",
        _page_data(adapter, results, job_names),
        title=html.escape(title),
        subtitle=html.escape(title),
        headline=adapters.summary_line(
            results, True, unit, [adapter.summary_suffix(result) for result in results]
        ),
        note=html.escape(adapters.unfinished_note(results, unit)),
    )


def _asset(name: str) -> str:
    return files("loadmaster.platform.replay").joinpath(name).read_text(encoding="utf-8")


def _page_data(
    adapter: adapters.ReplayAdapter, results: Sequence[adapters.Outcome], job_names: Sequence[str]
) -> dict[str, Any]:
    first, jobs = results[0], adapters.jobs_arrived(results)
    return {
        "unit": adapter.unit(results)._asdict(),
        **adapter.cluster_data(results),
        "jobs": {
            "name": list(job_names[:jobs]),
            "arrival_s": first.arrival_s[:jobs].tolist(),
            **adapter.job_data(first, jobs),
        },
        "policies": [
            {
                "name": result.policy,
                "mean_jct_s": none_for_nan(result.mean_jct_s),
                "makespan_s": none_for_nan(adapters.makespan_s(result)),
                "end_s": result.end_s,
                "completion_s": [none_for_nan(s) for s in result.completion_s[:jobs].tolist()],
                **adapter.policy_data(result, jobs),
            }
            for result in results
        ],
    }


def none_for_nan(value: float) -> float | None:
    """Replace nan, which JSON cannot hold."""
    return None if math.isnan(value) else value
