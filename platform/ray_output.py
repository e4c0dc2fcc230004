"""What Ray prints goes to a file: a live display, and JSON on stdout, share their stream badly."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

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
