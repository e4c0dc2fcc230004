"""Output, interrupts and clean-up of commands that run on Ray."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TextIO

from loadmaster.envs.errors import InputError

RAY_LOG = "ray.log"  # in the folder of a run or a sweep
STDOUT, STDERR = 1, 2


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


@contextmanager
def ray_output_in(path: Path) -> Iterator[TextIO]:
    """Redirect stdout and stderr to a file, so that Ray's output does not mix with ours.

    Yields the original stderr. Ray writes from native code, through logging, and from a thread, so
    the descriptors themselves are redirected.
    """
    with path.open("ab") as log:
        _flush()
        saved = {number: os.dup(number) for number in (STDOUT, STDERR)}
        stderr = os.fdopen(os.dup(STDERR), "w", encoding="utf-8", errors="replace")
        for number in saved:
            os.dup2(log.fileno(), number)
    try:
        yield stderr
    finally:
        _flush()
        stderr.close()
        for number, copy in saved.items():
            os.dup2(copy, number)
            os.close(copy)


@contextmanager
def handled(handler: Callable[[int, FrameType | None], Any], *numbers: int) -> Iterator[None]:
    """Handle signals inside the block."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def terminable() -> AbstractContextManager[None]:
    """Raise KeyboardInterrupt on SIGTERM, as on Ctrl-C."""
    return handled(signal.default_int_handler, signal.SIGTERM)


@contextmanager
def keep_sigterm() -> Iterator[None]:
    """Set the handler of SIGTERM again at the end of the block, unless it is the system's.

    `ray.init` replaces it.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def reraise_sigint(held_s: float = 0.0) -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of the block if Ctrl-C was swallowed inside.

    Code that Ray runs while it starts swallows a KeyboardInterrupt now and then. The first Ctrl-C
    is held back until the block ends, for `held_s` seconds at most; a second one is not.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    interrupted = threading.Event()

    again = threading.Timer(held_s, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    again.daemon = True

    def on_sigint(number: int, frame: FrameType | None) -> None:
        if held_s and not interrupted.is_set():
            interrupted.set()
            again.start()
            return
        interrupted.set()
        raise KeyboardInterrupt

    with handled(on_sigint, signal.SIGINT):
        try:
            yield
        finally:
            again.cancel()
    if interrupted.is_set():
        raise KeyboardInterrupt


class Folder(Protocol):
    """The folder of a run or a sweep."""

    @property
    def path(self) -> Path: ...

    def discard(self) -> None:
        """Delete it if it holds no results."""


@contextmanager
def cleanup_on_exit(
    folder: Folder, resumed: bool, print_resume_hint: Callable[[], None]
) -> Iterator[None]:
    """Discard a new folder on bad input or Ctrl-C; print how to resume if it stays."""
    try:
        yield
    except (InputError, KeyboardInterrupt) as end:
        if not resumed:
            folder.discard()
        if isinstance(end, KeyboardInterrupt) and folder.path.exists():
            print_resume_hint()
        raise
    except Exception as fault:
        fault.add_note(f"Ray's output is in {folder.path / RAY_LOG}")
        raise
