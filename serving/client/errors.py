"""Errors of a call; the text of each is one line."""

MAX_MESSAGE = 500  # characters: it goes into logs, whatever a proxy responded


class ServiceError(Exception):
    """The service refused the request, or its response is unreadable.

    `status` is the HTTP status, None without a response; `field` is the invalid part of the
    request, if the service named one.
    """

    cause = "refused"  # of a local decision after this error

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
    """No response in time. The service may have acted on the request."""

    cause = "deadline"


class Unreachable(ServiceError):  # noqa: N818
    """No connection, or one that broke before the response."""

    cause = "unreachable"


def one_line(text: str) -> str:
    """Replace line ends and control characters by blanks, and shorten the text."""
    line = "".join(char if char.isprintable() else " " for char in text[: 4 * MAX_MESSAGE])
    line = " ".join(line.split())
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 3] + "..."
