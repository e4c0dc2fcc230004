"""Faults that only show between fields, told of the field that is wrong."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError


def wrong_field(place: tuple[str | int, ...], given: Any, message: str) -> ValidationError:
    """For a validator of a whole record to raise; `place` leads from there to the field."""
    # The message is passed as a value: what a stranger wrote may hold braces.
    fault = PydanticCustomError("wrong_field", "{message}", {"message": message})
    details = InitErrorDetails(type=fault, loc=place, input=given)
    return ValidationError.from_exception_data("state", [details])
