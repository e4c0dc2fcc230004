"""Folder of a Ray that this project starts: closed to other users, deleted at its end.

Ray opens its folder to every user of the machine (mode 0777), sockets included; a user who renames
one disconnects the raylet from its workers. So Ray's folder is inside another of mode 0700. The
process that owns the folder locks a file in it. The kernel releases the lock however that process
ends, and the next start deletes folders whose lock is free.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from loadmaster.envs.errors import InputError

PREFIX = "lm-ray-"
LOCK, RAY = "lock", "r"  # in the folder: the lock file, Ray's own folder
SESSION = "session_2026-01-01_00-00-00_000000_1234567"  # as long as Ray's names become
LONGEST = f"{PREFIX}12345678/{RAY}/{SESSION}/sockets/plasma_store"
SOCKET_BYTES = 107 if sys.platform == "linux" else 103  # longest path of a Unix socket


@contextlib.contextmanager
def session_folder() -> Iterator[Path]:
    """A new folder for Ray that only this user can reach; deleted at the end."""
    base = _base()
    delete_left_over(base)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))  # mode 0700
    with _held(folder):
        (folder / RAY).mkdir()
        try:
            yield folder / RAY
        finally:
            _delete(folder)


def delete_left_over(base: Path) -> None:
    """Delete this user's folders whose owners were killed before they deleted them."""
    for folder in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            facts = folder.lstat()
            if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
                continue
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while the owner runs
                _delete(folder)
            finally:
                os.close(lock)


def _base() -> Path:
    """The temporary folder, or /tmp if paths of sockets would become too long there."""
    places = (Path(tempfile.gettempdir()), Path("/tmp"))
    for place in places:
        if len(os.fsencode(place / LONGEST)) <= SOCKET_BYTES and os.access(place, os.W_OK):
            return place
    room = SOCKET_BYTES - len(LONGEST) - 1
    raise InputError(
        f"TMPDIR {str(places[0])!r} is too long for Ray's sockets, and /tmp cannot be written; "
        f"expected a path of at most {room} bytes"
    )


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. It gets its name only once it is held, as others try to take it."""
    unnamed = folder / f".{LOCK}"
    lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unnamed.rename(folder / LOCK)
        yield
    finally:
        os.close(lock)


def _delete(folder: Path) -> None:
    """The lock file goes last: without it a folder that is still written to would stay for ever."""
    shutil.rmtree(folder / RAY, ignore_errors=True)
    if not (folder / RAY).exists():
        shutil.rmtree(folder, ignore_errors=True)
