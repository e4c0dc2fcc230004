"""A file that is there whole or not at all."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO

from loadmaster.envs.errors import InputError


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
def bytes_written_whole(path: Path) -> Iterator[IO[bytes]]:
    """The same, for what is not text."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        file = scratch.open("wb")
    except OSError as fault:
        raise InputError(
            f"cannot write --output {str(path)!r}: {fault.strerror}; "
            "expected a file name in a folder that exists and can be written to"
        ) from None
    try:
        with file:
            yield file
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
