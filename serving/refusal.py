"""An answer that is not what was asked for."""

from __future__ import annotations

from collections.abc import Mapping


class Refused(Exception):  # noqa: N818 - an answer, no fault
    """Told with that status, and with the field that is wrong where there is one."""

    def __init__(
        self,
        status: int,
        line: str,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(line)
        self.status, self.line, self.field, self.headers = status, line, field, headers or {}
