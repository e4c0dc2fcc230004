"""Typed clients of the decision service: `Client`, and `AsyncClient` for asyncio.

They run inside a scheduler: they need the standard library only, and no call exceeds its deadline.
"""

from .clients import AsyncClient, Client
from .errors import DeadlineExceeded, ServiceError, Unreachable
from .responses import (
    Accepted,
    Choice,
    Decision,
    History,
    LoggedDecision,
    PolicyName,
    Reason,
    Shadow,
    Status,
    Systems,
)

__all__ = [
    "Accepted",
    "AsyncClient",
    "Choice",
    "Client",
    "DeadlineExceeded",
    "Decision",
    "History",
    "LoggedDecision",
    "PolicyName",
    "Reason",
    "ServiceError",
    "Shadow",
    "Status",
    "Systems",
    "Unreachable",
]
