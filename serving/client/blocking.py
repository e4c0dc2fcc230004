"""The blocking client. Threads may share one."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Literal, Self, TypeVar

from . import calls
from .base import BaseClient
from .calls import Call, Mode, Payload
from .connection import Connection
from .errors import ServiceError
from .http1 import Request, Response
from .responses import (
    Accepted,
    Decision,
    History,
    LoggedDecision,
    Status,
    Systems,
)
from .retry import ATTEMPT_ERRORS, RetryPolicy

T = TypeVar("T")


class Client(BaseClient[Connection]):
    """Client of a decision service. Calls raise ServiceError without a usable response."""

    _pause = staticmethod(time.sleep)
    _owner = staticmethod(os.getpid)

    def systems(self) -> Systems:
        """Describe the service and its systems."""
        return self.ask(calls.systems())

    def decide(
        self,
        system: str,
        state: Payload,
        mode: Mode = "active",
        deadline_ms: float | None = None,
    ) -> Decision:
        """Decide in `state`: a mapping, a pydantic model or JSON as bytes.

        In mode "shadow" the service's rule decides, and `.shadow` has the policy's decision.
        `deadline_ms` bounds the policy within the service, `deadline_s` the whole call.
        """
        start, request_id = self._clock(), self._new_id()
        try:
            found = self.ask(calls.decide(system, state, mode, deadline_ms, request_id))
        except ServiceError as fault:
            return self._decide_locally(system, state, fault, request_id, start)
        return self._service_decided(system, found)

    def feedback(self, system: str, outcome: Payload, id: str | None = None) -> Accepted:
        """Report the outcome of the decision `id`, or of the latest ones."""
        return self.ask(calls.feedback(system, outcome, id))

    def status(self, system: str) -> Status:
        """Return lifecycle, policies, counts, rewards and drift of a system."""
        return self.ask(calls.status(system))

    def decisions(self, system: str, limit: int = 50) -> tuple[LoggedDecision, ...]:
        """Return the latest decisions, newest first."""
        return self.ask(calls.decisions(system, limit))

    def history(self, system: str) -> History:
        """Return counts and latencies by interval, oldest first."""
        return self.ask(calls.history(system))

    def example(self, system: str, name: str = "small") -> Mapping[str, Any]:
        """Return an example of a valid state."""
        return self.ask(calls.example(system, name))

    def pause(self, system: str, reason: str | None = None) -> Status:
        """Let the rule decide until `resume`. This and the methods below need an admin token."""
        return self.ask(calls.admin("pause", system, reason=reason))

    def resume(self, system: str, reason: str | None = None) -> Status:
        return self.ask(calls.admin("resume", system, reason=reason))

    def promote(
        self,
        system: str,
        bundle: str | None = None,
        to: Literal["shadow", "serving"] | None = None,
    ) -> Status:
        """Let the shadow policy serve; with `bundle`, put that into shadow or let it serve."""
        return self.ask(calls.admin("promote", system, bundle=bundle, to=to))

    def rollback(self, system: str) -> Status:
        """Let the previously serving policy serve again."""
        return self.ask(calls.admin("rollback", system))

    def ask(self, call: Call[T]) -> T:
        """Send a call, with retries, and decode its response."""
        retry = self._retry_policy(call.request)
        data = self._address.encode(call.request)
        while True:
            try:
                response = self._exchange(call.request, data, retry)
            except ATTEMPT_ERRORS as fault:
                pause = retry.after_error(fault)
            else:
                retry_pause = retry.after_response(response)
                if retry_pause is None:
                    return call.result(response)
                pause = retry_pause
            self._sleep(pause)

    def _exchange(self, request: Request, data: bytes, retry: RetryPolicy) -> Response:
        kept = None if request.fresh else self._pool.take()
        connection = kept or Connection(self._address, retry.remaining_s)
        try:
            response = connection.exchange(data, retry.remaining_s, self._max_body)
        except BaseException:
            connection.close()
            raise
        if response.keep:
            self._pool.put(connection)
        else:
            connection.close()
        return response

    def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        self._pool.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()
