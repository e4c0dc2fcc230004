"""Reader of Prometheus' HTTP API: a PromQL expression over time, as one column of numbers."""

from __future__ import annotations

import json
import math
from typing import Any
from urllib.parse import urlencode

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.core import SilentError
from loadmaster.serving.client import Client, ServiceError
from loadmaster.serving.client.calls import Call
from loadmaster.serving.client.http1 import Request, Response

Column = list[float | None]  # one value each step; None: no sample


class PrometheusCall(Call[Any]):
    """A call whose errors have Prometheus' own text."""

    def result(self, response: Response) -> Any:
        try:
            data = json.loads(response.body)
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict) or data.get("status") != "success":
            text = data.get("error") if isinstance(data, dict) else None
            raise ServiceError(str(text or f"HTTP status {response.status}"), response.status)
        return self.decode(data["data"])


class Prometheus:
    """Client of one Prometheus. Raises SilentError if it cannot be reached or does not evaluate."""

    def __init__(self, url: str, token: str | None = None, deadline_s: float = 10.0) -> None:
        try:
            self._client = Client(url, token, deadline_s, token_variable=None)
        except ValueError as fault:
            raise InputError(f"--prometheus: {fault}") from None
        self.url = url

    def column(self, query: str, end_s: float, step_s: float, count: int) -> Column:
        """Evaluate `query` at `count` times, `step_s` apart, the last one at `end_s`.

        The expression must have at most one series. NaN counts as no sample.
        """
        start_s = end_s - (count - 1) * step_s
        given = {"query": query, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": step_s}
        target = f"/api/v1/query_range?{urlencode(given)}"
        try:
            found = self._client.ask(PrometheusCall(Request("GET", target), lambda data: data))
        except ServiceError as fault:
            raise SilentError("metrics", f"Prometheus at {self.url}: {fault}") from None
        return _to_column(found, query, start_s, step_s, count)

    def close(self) -> None:
        self._client.close()


def _to_column(data: Any, query: str, start_s: float, step_s: float, count: int) -> Column:
    """Values of a matrix by their time."""
    try:
        series = data["result"]
        column: Column = [None] * count
        for at, text in series[0]["values"] if series else ():
            place, value = round((float(at) - start_s) / step_s), float(text)
            if 0 <= place < count and math.isfinite(value):
                column[place] = value
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as fault:
        raise SilentError("metrics", f"unexpected answer of Prometheus: {fault!r}") from None
    if len(series) > 1:
        raise InputError(f"{query!r} has {len(series)} series; expected one: use sum(...)")
    return column
