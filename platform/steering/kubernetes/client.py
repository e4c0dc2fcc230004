"""Client of the Kubernetes API: objects as parsed JSON, errors by their status.

429, 502, 503 and 504 are tried again within the deadline, as `Retry-After` says. What then still
fails, and any other 5xx, is a SilentError; 403, 404, 409 and 422 are an `ApiError` for the caller.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.core import SilentError
from loadmaster.platform.steering.kubernetes.access import Access
from loadmaster.serving.client import Client, ServiceError
from loadmaster.serving.client.calls import Call
from loadmaster.serving.client.http1 import Request, Response

Object = Mapping[str, Any]

FORBIDDEN, NOT_FOUND, CONFLICT, GONE, INVALID = 403, 404, 409, 410, 422
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
PAGE = 500  # objects of one answer to a list
LIST_ATTEMPTS = 3  # of a list whose continuation has expired

_UNAUTHORISED, _MOST_BYTES = 401, 256 * 2**20


class ApiError(ServiceError):
    """The API server refused a request; `reason` is its word for it, such as Conflict."""

    def __init__(self, message: str, status: int, reason: str) -> None:
        super().__init__(message, status)
        self.reason = reason


class ApiCall(Call[Any]):
    """A call whose errors are read from a Status object."""

    def result(self, response: Response) -> Any:
        try:
            data = json.loads(response.body)
        except (ValueError, RecursionError):
            data = None
        if 200 <= response.status < 300 and isinstance(data, dict):
            return data
        status = data if isinstance(data, dict) else {}
        message = status.get("message") or f"HTTP status {response.status}"
        raise ApiError(str(message), response.status, str(status.get("reason") or ""))


class KubernetesClient:
    """Reads and patches objects. Raises ApiError and SilentError."""

    def __init__(self, access: Access, deadline_s: float = 10.0) -> None:
        self._access, self._deadline_s = access, deadline_s
        self._client = self._connect()

    def _connect(self) -> Client:
        access = self._access
        try:
            token = access.current_token()
            return Client(
                access.url, token, self._deadline_s, tls=access.tls, max_answer=_MOST_BYTES,
                token_variable=None,
            )  # fmt: skip
        except ValueError as fault:
            raise InputError(f"API server: {fault}") from None

    def get(self, path: str) -> Object:
        return self._call(Request("GET", path))

    def find(self, path: str) -> Object | None:
        """The object, None if there is none or its kind is not installed."""
        try:
            return self.get(path)
        except ApiError as fault:
            if fault.status == NOT_FOUND:
                return None
            raise

    def list(self, path: str, **query: str) -> list[Object]:
        """All objects of a kind; none if the kind is not installed.

        An expired continuation, 410, begins anew: objects are then of one time again.
        """
        for _ in range(LIST_ATTEMPTS):
            found: list[Object] = []
            following = ""
            try:
                while True:
                    given = {**query, "limit": str(PAGE), "continue": following}
                    pairs = {name: value for name, value in given.items() if value}
                    page = self.find(f"{path}?{urlencode(pairs)}")
                    if page is None:
                        return []
                    found += page.get("items") or ()
                    following = (page.get("metadata") or {}).get("continue") or ""
                    if not following:
                        return found
            except ApiError as fault:
                if fault.status != GONE:
                    raise
        raise SilentError("engine", f"{path}: the list expired {LIST_ATTEMPTS} times")

    def patch(self, path: str, body: Object, kind: str = MERGE) -> Object:
        content = json.dumps(body, allow_nan=False).encode()
        return self._call(Request("PATCH", path, content, content_type=kind))

    def create(self, path: str, body: Object) -> Object:
        content = json.dumps(body, allow_nan=False).encode()
        return self._call(Request("POST", path, content, idempotent=False))

    def close(self) -> None:
        self._client.close()

    def _call(self, request: Request) -> Object:
        call = ApiCall(request, lambda data: data)
        try:
            try:
                found: Object = self._client.ask(call)
            except ApiError as fault:
                if fault.status != _UNAUTHORISED or self._access.token_file is None:
                    raise
                self._client.close()
                self._client = self._connect()  # with the rotated token
                found = self._client.ask(call)
        except ApiError as fault:
            if fault.status in (FORBIDDEN, NOT_FOUND, CONFLICT, GONE, INVALID, 400, 405):
                raise
            raise SilentError("engine", f"API server: {fault}") from None
        except ServiceError as fault:
            raise SilentError("engine", f"API server: {fault}") from None
        except OSError as fault:  # of the token's file
            raise SilentError("engine", f"{fault.filename}: {fault.strerror}") from None
        return found


def path_of(api: str, namespace: str | None, plural: str, name: str = "", part: str = "") -> str:
    """Path of a kind, an object or a subresource; `api` is `v1` or `group/version`."""
    root = f"/api/{api}" if "/" not in api else f"/apis/{api}"
    parts = [root]
    if namespace is not None:
        parts += ["namespaces", quote(namespace, safe="")]
    parts += [plural, *(quote(one, safe="") for one in (name, part) if one)]
    return "/".join(parts)
