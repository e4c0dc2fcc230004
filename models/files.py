"""A file that is there whole or not at all, and what kind of picture it is."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO

from loadmaster.envs.errors import InputError

# Parents that were made for something that then could not be written.


def missing_folders(folder: Path) -> list[Path]:
    """Those of a folder and its parents that do not exist, innermost first."""
    return [place for place in (folder, *folder.parents) if not place.exists()]


def remove_empty_folders(folders: list[Path]) -> None:
    """Take them back, innermost first, as far as nobody else has put anything in."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return


PICTURES = ("png", "svg", "pdf")


@contextmanager
def atomic_text_file(path: Path) -> Iterator[TextIO]:
    """A text file beside `path` that takes its name at the end; on a fault, nothing is left.

    It is opened at once, so that an unwritable place is refused before the work and not after it.
    """
    with (
        atomic_binary_file(path) as file,
        io.TextIOWrapper(file, encoding="utf-8", newline="\n") as text,
    ):
        yield text


@contextmanager
def atomic_binary_file(path: Path, option: str = "--output") -> Iterator[IO[bytes]]:
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


def image_format(path: Path, option: str = "--output") -> str:
    """By the end of its name."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in PICTURES:
        raise InputError(
            f"{option} {str(path)!r} says no kind of picture; expected a name that ends in one "
            f"of: {', '.join(f'.{each}' for each in PICTURES)}"
        )
    return kind
