"""Ctrl-C, where libraries are in the way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_heeded() -> Iterator[None]:
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
