"""The blocking client. Threads may share one."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Literal, Self, TypeVar

from loadmaster.serving.client import calls
from loadmaster.serving.client.base import Frame
from loadmaster.serving.client.calls import Call, Mode, Payload
from loadmaster.serving.client.connection import Connection
from loadmaster.serving.client.errors import ServiceError
from loadmaster.serving.client.http1 import Answer, Request
from loadmaster.serving.client.responses import (
    Accepted,
    Decision,
    History,
    LoggedDecision,
    Status,
    Systems,
)
from loadmaster.serving.client.retry import FAULTS, Attempts

T = TypeVar("T")


class Client(Frame[Connection]):
    """Asks a decision service and waits; a ServiceError tells why there is no answer."""

    _pause = staticmethod(time.sleep)
    _owner = staticmethod(os.getpid)

    def systems(self) -> Systems:
        """The service and the systems it decides for."""
        return self.ask(calls.systems())

    def decide(
        self,
        system: str,
        state: Payload,
        mode: Mode = "active",
        deadline_ms: float | None = None,
    ) -> Decision:
        """What to do in `state`: a mapping, a pydantic model or JSON as bytes.

        In mode "shadow" the service's rule decides and `.shadow` tells what the policy would have
        done. `deadline_ms` is the policy's within the service; the client's own covers the call.
        """
        began, request_id = self._clock(), self._new_id()
        try:
            found = self.ask(calls.decide(system, state, mode, deadline_ms, request_id))
        except ServiceError as fault:
            return self._decided_here(system, state, fault, request_id, began)
        return self._decided(system, found)

    def feedback(self, system: str, outcome: Payload, id: str | None = None) -> Accepted:
        """What came of the decision `id`, or of the latest ones."""
        return self.ask(calls.feedback(system, outcome, id))

    def status(self, system: str) -> Status:
        """Lifecycle, policies, counts, rewards and drift of a system."""
        return self.ask(calls.status(system))

    def decisions(self, system: str, limit: int = 50) -> tuple[LoggedDecision, ...]:
        """The latest decisions, newest first."""
        return self.ask(calls.decisions(system, limit))

    def history(self, system: str) -> History:
        """Counts and latencies by interval, oldest first."""
        return self.ask(calls.history(system))

    def example(self, system: str, name: str = "small") -> Mapping[str, Any]:
        """A state that the service understands."""
        return self.ask(calls.example(system, name))

    def pause(self, system: str, reason: str | None = None) -> Status:
        """Let the rule decide until `resume`. This and what follows need an admin's token."""
        return self.ask(calls.admin("pause", system, reason=reason))

    def resume(self, system: str, reason: str | None = None) -> Status:
        return self.ask(calls.admin("resume", system, reason=reason))

    def promote(
        self,
        system: str,
        bundle: str | None = None,
        to: Literal["shadow", "serving"] | None = None,
    ) -> Status:
        """The policy in shadow serves; or `bundle` goes into shadow, or serves."""
        return self.ask(calls.admin("promote", system, bundle=bundle, to=to))

    def rollback(self, system: str) -> Status:
        """The policy that served before serves again."""
        return self.ask(calls.admin("rollback", system))

    def ask(self, call: Call[T]) -> T:
        """Any call, with the attempts it may have."""
        attempts = self._attempts(call.request)
        data = self._address.encode(call.request)
        while True:
            try:
                answer = self._exchange(call.request, data, attempts)
            except FAULTS as fault:
                pause = attempts.after_fault(fault)
            else:
                again = attempts.after_answer(answer)
                if again is None:
                    return call.result(answer)
                pause = again
            self._sleep(pause)

    def _exchange(self, request: Request, data: bytes, attempts: Attempts) -> Answer:
        kept = None if request.fresh else self._idle.take()
        connection = kept or Connection(self._address, attempts.left_s)
        try:
            answer = connection.exchange(data, attempts.left_s, self._max_answer)
        except BaseException:
            connection.close()
            raise
        if answer.keep:
            self._idle.keep(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        """End the connections. A later call opens new ones."""
        self._idle.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()
