"""A file that is there whole or not at all, and what kind of picture it is."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO

from loadmaster.envs.errors import InputError

PICTURES = ("png", "svg", "pdf")


@contextmanager
def written_whole(path: Path) -> Iterator[TextIO]:
    """A text file beside `path` that takes its name at the end; on a fault, nothing is left.

    It is opened at once, so that an unwritable place is refused before the work and not after it.
    """
    with (
        bytes_written_whole(path) as file,
        io.TextIOWrapper(file, encoding="utf-8", newline="\n") as text,
    ):
        yield text


@contextmanager
def bytes_written_whole(path: Path, option: str = "--output") -> Iterator[IO[bytes]]:
    """The same, for what is not text; `option` is what somebody named it by."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        file = scratch.open("wb")
    except OSError as fault:
        raise InputError(
            f"cannot write {option} {str(path)!r}: {fault.strerror}; "
            "expected a file name in a folder that exists and can be written to"
        ) from None
    try:
        with file:
            yield file
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def picture_kind(path: Path, option: str = "--output") -> str:
    """By the end of its name."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in PICTURES:
        raise InputError(
            f"{option} {str(path)!r} says no kind of picture; expected a name that ends in one "
            f"of: {', '.join(f'.{each}' for each in PICTURES)}"
        )
    return kind
