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
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600  # modes: no access for other users


def private_opener(name: str, flags: int) -> int:
    """`opener` of `open`: a new file can be accessed by this user only."""
    return os.open(name, flags, PRIVATE_FILE)


@contextmanager
def atomic_write(path: Path, *, sync: bool = False, private: bool = False) -> Iterator[IO[bytes]]:
    """A file beside `path` that takes its name at the end, or is removed on an exception.

    `sync` flushes it to disk first, so that a power cut leaves the old file or the new one.
    `private` denies other users access to it.
    """
    scratch = _scratch(path)
    try:
        with open(scratch, "wb", opener=private_opener if private else None) as file:
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
def atomic_folder(folder: Path, *, replace: bool = False, private: bool = False) -> Iterator[Path]:
    """A folder beside `folder` that takes its name at the end, or is removed on an exception.

    Missing parents are created. `replace` allows an older folder of that name, which stays until
    the new one is complete. `private` denies other users access to it.
    """
    scratch, old = _scratch(folder), _scratch(folder).with_suffix(".old")
    created = missing_folders(folder.parent)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch.mkdir(PRIVATE_FOLDER if private else 0o777)
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


def private_folder(folder: Path) -> None:
    """Create a folder and its parents for this user only; an existing one is closed to others.

    Only its owner can do that: a folder of another user stays as it is.
    """
    for place in (*reversed(missing_folders(folder)), folder):
        place.mkdir(PRIVATE_FOLDER, exist_ok=True)
    facts = folder.stat()
    if facts.st_mode & 0o077 and facts.st_uid == os.geteuid():
        folder.chmod(PRIVATE_FOLDER)


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
