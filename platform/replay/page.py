"""The replay page: one HTML file with data, style and script inside, which needs no network."""

import html
from collections.abc import Iterable, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.platform.replay.adapters import (
    Chart,
    ReplayAdapter,
    find_replay_adapter,
    unit_data,
)
from loadmaster.serving.console.page_bundle import bundle_modules, offline_page

MAX_ROWS = 5_000_000  # a page of about 20 MB, which browsers still paint smoothly


def build_page(
    results: Sequence[Any],
    item_names: Sequence[str],
    title: str,
    environment: str = "dag_scheduling",
) -> str:
    """Build the page for one or two recorded episodes.

    `item_names` are those of the jobs in order of arrival, or of a streaming job's tasks.
    """
    adapter = find_replay_adapter(environment)
    most = MAX_ROWS if adapter.most_rows is None else min(MAX_ROWS, adapter.most_rows)
    if (rows := sum(map(adapter.rows, results))) > most:
        raise InputError(
            f"{rows:,} {adapter.rows_are} are too many for one page; expected at most {most:,}: "
            f"{adapter.fewer}"
        )
    modules = files("loadmaster.platform.replay").joinpath("script")
    return offline_page(
        _content(adapter),
        _asset("page.css") + _asset(f"parts/{environment}/style.css"),
        bundle_modules(modules, f"{environment}/main.js"),
        "replay-data",
        {"unit": unit_data(adapter.unit(results)), **adapter.page_data(results, item_names)},
        title=html.escape(title),
        subtitle=html.escape(title),
        headline=adapter.summary(results, as_html=True),
        note=html.escape(adapter.note(results)),
    )


def _content(adapter: ReplayAdapter) -> str:
    parts = f"parts/{adapter.environment}"
    decisions = ""
    if adapter.decisions is not None:
        decisions = _filled(
            "decisions.html",
            table=_asset(f"{parts}/decisions.html"),
            **adapter.decisions._asdict(),
        )
    return _filled(
        "page.html",
        item=adapter.item,
        items_title=f"{adapter.item}s".capitalize(),
        plots_title=adapter.plots.capitalize(),
        plots=adapter.plots,
        difference=adapter.difference,
        charts_above=_charts(chart for chart in adapter.charts if chart.above),
        charts_below=_charts(chart for chart in adapter.charts if not chart.above),
        panel=_asset(f"{parts}/panel.html"),
        decisions=decisions,
        legend=_asset(f"{parts}/legend.html"),
    )


def _charts(charts: Iterable[Chart]) -> str:
    return "".join(_filled("chart.html", id=chart.id, title=chart.title) for chart in charts)


def _filled(file: str, /, **values: str) -> str:
    return Template(_asset(file)).substitute(values)


def _asset(name: str) -> str:
    return files("loadmaster.platform.replay").joinpath(name).read_text(encoding="utf-8")
