"""How a run or a sweep ends that could not go on."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol, TextIO

from loadmaster.envs.errors import InputError

# What Ray prints goes to a file: a live display, and JSON on stdout, share their stream badly.


RAY_LOG = "ray.log"  # in the folder of a run or a sweep
STDOUT, STDERR = 1, 2


@contextmanager
def ray_output_in(path: Path) -> Iterator[TextIO]:
    """Meanwhile both standard streams end in the file; gives the stderr there was.

    Ray speaks from native code, through Python's logging and, from a thread of its own, on stdout.
    Only the streams' descriptors are common to all three.
    """
    with path.open("ab") as log:
        _flush()
        kept = {number: os.dup(number) for number in (STDOUT, STDERR)}
        ours = os.fdopen(os.dup(STDERR), "w", encoding="utf-8", errors="replace")
        for number in kept:
            os.dup2(log.fileno(), number)
    try:
        yield ours
    finally:
        _flush()
        ours.close()
        for number, copy in kept.items():
            os.dup2(copy, number)
            os.close(copy)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


# Ctrl-C, where libraries are in the way.


@contextmanager
def reraise_sigint() -> Iterator[None]:
    """Ctrl-C ends what is inside at the latest with its end.

    What Ray runs while it starts swallows a KeyboardInterrupt now and then, wherever it happens to
    be raised.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread alone
        return
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        asked.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked.is_set():
        raise KeyboardInterrupt


class Folder(Protocol):
    """Of a run or a sweep."""

    @property
    def path(self) -> Path: ...

    def discard(self) -> None:
        """Take it back, as long as nothing is in it that somebody would miss."""


@contextmanager
def cleanup_on_exit(
    folder: Folder, resumed: bool, tell_how_to_go_on: Callable[[], None]
) -> Iterator[None]:
    """A new folder is taken back; of one that stays the user is told, and where Ray's words are."""
    try:
        yield
    except (InputError, KeyboardInterrupt) as end:
        if not resumed:
            folder.discard()
        if isinstance(end, KeyboardInterrupt) and folder.path.exists():
            tell_how_to_go_on()
        raise
    except Exception as fault:
        fault.add_note(f"What Ray printed is in {folder.path / RAY_LOG}")
        raise
