"""A typed client of the decision service: `Client`, and `AsyncClient` for asyncio.

It stands in the user's scheduler, so it needs nothing but the standard library, is imported in a
moment, and never takes longer than its deadline.
"""

from loadmaster.serving.client.aio import AsyncClient
from loadmaster.serving.client.blocking import Client
from loadmaster.serving.client.errors import DeadlineExceeded, ServiceError, Unreachable
from loadmaster.serving.client.responses import (
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
