"""What a client decides by itself where the service does not: so that a scheduler never stops."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from loadmaster.serving.client.errors import DeadlineExceeded, ServiceError, Unreachable
from loadmaster.serving.client.responses import Decision, PolicyName, Reason

Fallback = Callable[[str, Any], Mapping[str, Any]]  # of system and state, the decision

_log = logging.getLogger("loadmaster.client")


class Standby:
    """Tells of the first decision of its own in a row, not of all: an outage is one line."""

    def __init__(self, fallback: Fallback) -> None:
        self._fallback = fallback
        self._causes: dict[str, str] = {}  # by system; those that the service decides have none

    def decide(
        self, system: str, state: Any, fault: ServiceError, request_id: str, elapsed_s: float
    ) -> Decision:
        cause = _cause(fault)
        if cause != self._causes.get(system):
            _log.warning("%s is decided locally: %s", system, fault)
        self._causes[system] = cause
        return Decision(
            id=request_id,
            decision=self._fallback(system, state),
            source="local",
            cause=cause,
            reason=Reason(str(fault)),
            policy=PolicyName(getattr(self._fallback, "__name__", "local")),
            latency_ms=1000 * elapsed_s,
        )

    def answered(self, system: str) -> None:
        """The service did decide."""
        if self._causes.pop(system, None) is not None:
            _log.warning("%s is decided by the service again", system)


def _cause(fault: ServiceError) -> str:
    match fault:
        case DeadlineExceeded():
            return "deadline"
        case Unreachable():
            return "unreachable"
    return "refused"
