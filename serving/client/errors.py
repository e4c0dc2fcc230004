"""What can go wrong between a client and the service: one family, each told in one line."""

from __future__ import annotations

LONGEST = 500  # characters of a message: a log line, whatever a stranger answered


class ServiceError(Exception):
    """The service refused a request, or answered what nobody can read.

    `status` is the answer's, None where there was none; `field` names the part of the request
    that was wrong, where the service could tell.
    """

    def __init__(self, message: str, status: int | None = None, field: str | None = None) -> None:
        super().__init__(message, status, field)
        self.message = one_line(message)
        self.status = status
        self.field = None if field is None else one_line(field)

    def __str__(self) -> str:
        if self.field and self.field not in self.message:
            return f"{self.field}: {self.message}"
        return self.message


class DeadlineExceeded(ServiceError):  # noqa: N818
    """No answer in time. The service may have acted on the request."""


class Unreachable(ServiceError):  # noqa: N818
    """No connection, or one that broke before the answer."""


def one_line(text: str) -> str:
    """For logs and terminals: no line ends, no control characters, not endless."""
    line = "".join(sign if sign.isprintable() else " " for sign in text[: 4 * LONGEST])
    line = " ".join(line.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."
