"""Client of Ray's dashboard: Serve's applications, and the replicas of a deployment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.core import RefusedError, SilentError
from loadmaster.serving.client import Client, ServiceError
from loadmaster.serving.client.calls import Call
from loadmaster.serving.client.http1 import Request, Response

_APPLICATIONS = "/api/serve/applications/"
_METRICS = "/api/prometheus/sd"


class _JsonCall(Call[Any]):
    """A call whose errors are an object with `error`, or text."""

    def result(self, response: Response) -> Any:
        try:
            data = json.loads(response.body)
        except (ValueError, RecursionError):
            data = None
        if 200 <= response.status < 300 and data is not None:
            return data
        text = data.get("error") if isinstance(data, dict) else response.body[:200].decode("latin1")
        raise ServiceError(str(text or f"HTTP status {response.status}"), response.status)


class Dashboard:
    """Reads and scales deployments. Raises SilentError where the dashboard does not answer."""

    def __init__(self, url: str, token: str | None = None, deadline_s: float = 10.0) -> None:
        try:
            self._client = Client(url, token, deadline_s, retries=2, token_variable=None)
        except ValueError as fault:
            raise InputError(f"setting dashboard: {fault}") from None
        self.url = url

    def applications(self) -> Mapping[str, Any]:
        """Serve's applications by name."""
        data = self._get(_APPLICATIONS)
        found = data.get("applications") if isinstance(data, dict) else None
        if not isinstance(found, dict):
            raise SilentError("engine", f"{self.url} names no applications of Ray Serve")
        return found

    def metrics_addresses(self) -> Sequence[str]:
        """Where nodes export their metrics."""
        data = self._get(_METRICS)
        try:
            return sorted({str(target) for group in data for target in group["targets"]})
        except (TypeError, KeyError):
            raise SilentError("metrics", f"unexpected answer of {self.url}{_METRICS}") from None

    def scale(self, application: str, deployment: str, replicas: int) -> None:
        """Set the number of replicas; a RefusedError has Serve's reason."""
        app, name = quote(application, safe=""), quote(deployment, safe="")
        body = json.dumps({"target_num_replicas": replicas}).encode()
        request = Request("POST", f"/api/v1/applications/{app}/deployments/{name}/scale", body)
        try:
            self._client.ask(_JsonCall(request, lambda data: data))
        except ServiceError as fault:
            if fault.status is not None and 400 <= fault.status < 500:
                raise RefusedError(f"{fault.status}: {fault}") from None
            raise SilentError("engine", f"dashboard at {self.url}: {fault}") from None

    def close(self) -> None:
        self._client.close()

    def _get(self, target: str) -> Any:
        try:
            return self._client.ask(_JsonCall(Request("GET", target), lambda data: data))
        except ServiceError as fault:
            text = f"dashboard at {self.url}: {fault}"
            if fault.status in (401, 403):
                raise InputError(f"{text}; expected a token of Ray in ray_token_file") from None
            raise SilentError("engine", text) from None
