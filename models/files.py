"""Atomic writes: files and folders that appear complete under their name, or not at all."""

import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO

from loadmaster.envs.errors import InputError

PICTURES = ("png", "svg", "pdf")


@contextmanager
def atomic_write(path: Path, *, sync: bool = False) -> Iterator[IO[bytes]]:
    """A file beside `path` that takes its name at the end, or is removed on an exception.

    `sync` flushes it to disk first, so that a power cut leaves the old file or the new one.
    """
    scratch = _scratch(path)
    try:
        with scratch.open("wb") as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


@contextmanager
def atomic_binary_file(path: Path, option: str = "--output") -> Iterator[IO[bytes]]:
    """`atomic_write` to a path that the user gave by `option`.

    An unwritable path is refused at once, before the caller's work.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        _scratch(path).touch()
    except OSError as fault:
        raise InputError(
            f"cannot write {option} {str(path)!r}: {fault.strerror}; "
            "expected a file name in a folder that exists and can be written to"
        ) from None
    with atomic_write(path) as file:
        yield file


@contextmanager
def atomic_text_file(path: Path) -> Iterator[TextIO]:
    """`atomic_binary_file` for text."""
    with (
        atomic_binary_file(path) as file,
        io.TextIOWrapper(file, encoding="utf-8", newline="\n") as text,
    ):
        yield text


@contextmanager
def atomic_folder(folder: Path, *, replace: bool = False) -> Iterator[Path]:
    """A folder beside `folder` that takes its name at the end, or is removed on an exception.

    Missing parents are created. `replace` allows an older folder of that name, which stays until
    the new one is complete.
    """
    scratch, old = _scratch(folder), _scratch(folder).with_suffix(".old")
    created = missing_folders(folder.parent)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch.mkdir()
        yield scratch
        if replace and folder.exists():
            folder.rename(old)
        scratch.rename(folder)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        for left in (scratch, old):
            shutil.rmtree(left, ignore_errors=True)
        if not folder.exists():
            remove_empty_folders(created)


def missing_folders(folder: Path) -> list[Path]:
    """Those of a folder and its parents that do not exist, innermost first."""
    return [place for place in (folder, *folder.parents) if not place.exists()]


def remove_empty_folders(folders: list[Path]) -> None:
    """Remove folders, innermost first, up to one that is not empty."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return


def image_format(path: Path, option: str = "--output") -> str:
    """The image format of a path, by its suffix."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in PICTURES:
        raise InputError(
            f"{option} {str(path)!r} says no kind of picture; expected a name that ends in one "
            f"of: {', '.join(f'.{each}' for each in PICTURES)}"
        )
    return kind


def _scratch(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.partial")
