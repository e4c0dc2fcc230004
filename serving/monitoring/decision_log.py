"""The decision log of an endpoint: rows are taken at once, and written by a thread of its own.

Whoever decides never waits for the disk. A queue that is full drops rows and counts them; a disk
that is full, or a folder that is gone, is told in `fault` while rows wait for it to come back.
No request's headers come here, so no token can be logged.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from loadmaster.envs.settings import Settings
from loadmaster.serving.monitoring.log_files import (
    DECISIONS,
    FEEDBACK,
    SUFFIX,
    UNFINISHED,
    DecisionRow,
    FeedbackRow,
    Kind,
    write_part,
)

MOST_FILES = 20_000  # a folder with more is slow to list
ABANDONED_S = 600.0  # age of an unfinished file that nobody writes any more
ROW_BYTES = 500  # of a row in memory, beside its texts
KINDS = (DECISIONS, FEEDBACK)
NAME = rf"({DECISIONS.name}|{FEEDBACK.name})-(?P<begun>\d{{8}}T[\d.]+Z)-\d+-\d+\{SUFFIX}"
PART = re.compile(NAME)
UNFINISHED_PART = re.compile(rf"\.{NAME}\{UNFINISHED}")


class LogSettings(Settings):
    most_bytes: int = Field(default=512 << 20, ge=1 << 16)  # on disk; then the oldest files go
    part_rows: int = Field(default=2000, ge=1)  # that are written at once
    part_bytes: int = Field(default=8 << 20, ge=1 << 10)  # of rows in memory, the same
    flush_s: float = Field(default=10.0, gt=0)  # after which fewer are written too
    queue_rows: int = Field(default=20_000, ge=1)  # that may wait
    queue_bytes: int = Field(default=64 << 20, ge=1 << 10)


class LogStatus(NamedTuple):
    rows: int  # written since the start
    bytes: int  # on disk
    dropped: int  # not written, and not going to be
    fault: str | None  # why rows wait now


class _Waiting(NamedTuple):
    row: Any
    size: int


class _Part(NamedTuple):
    path: Path
    size: int


class DecisionLog:
    """Takes rows from any thread. `close` writes what waits."""

    def __init__(
        self,
        folder: Path,
        settings: LogSettings | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self.settings = settings or LogSettings()
        self._clock = clock  # what unfinished files are aged by
        self._queue_lock = threading.Lock()
        self._queues: dict[str, deque[_Waiting]] = {kind.name: deque() for kind in KINDS}
        self._waiting_rows = self._waiting_bytes = 0
        self._dropped = 0
        self._disk_lock = threading.RLock()  # one writer at a time
        self._parts: deque[_Part] | None = None  # on disk, the oldest first; None: look again
        self._bytes = self._rows = self._serial = 0
        self._fault: str | None = None
        self._closed = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name="decision-log", daemon=True)
        self._thread.start()

    def put_decision(self, row: DecisionRow) -> bool:
        """Take a row; False if there is no room for it."""
        texts = len(row.state) + len(row.decision) + len(row.reason) + len(row.shadow or "")
        return self._put(DECISIONS, row, ROW_BYTES + texts + sum(map(len, row.guard)))

    def put_feedback(self, row: FeedbackRow) -> bool:
        """The same for feedback."""
        return self._put(FEEDBACK, row, ROW_BYTES + len(row.outcome))

    def status(self) -> LogStatus:
        return LogStatus(self._rows, self._bytes, self._dropped, self._fault)

    def flush(self) -> bool:
        """Write what waits, now; False if it cannot be written, then `status` says why."""
        with self._disk_lock:
            try:
                self._look()
                for kind in KINDS:
                    while rows := self._next_rows(kind):
                        self._write(kind, rows)
                self._trim()
            except Exception as fault:  # whatever it is, decisions go on
                said = getattr(fault, "strerror", None) or str(fault) or type(fault).__name__
                self._fault = f"cannot write to {self.folder}: {said}"
                return False
            self._fault = None
            return True

    def close(self, timeout_s: float = 5.0) -> None:
        """Take no more, write what waits; what cannot be written counts as dropped."""
        self._closed.set()
        self._wake.set()
        self._thread.join(timeout_s)

    def _put(self, kind: Kind, row: Any, size: int) -> bool:
        settings = self.settings
        with self._queue_lock:
            if (
                self._closed.is_set()
                or self._waiting_rows >= settings.queue_rows
                or self._waiting_bytes + size > settings.queue_bytes
            ):
                self._dropped += 1
                return False
            self._queues[kind.name].append(_Waiting(row, size))
            self._waiting_rows += 1
            self._waiting_bytes += size
            enough = (
                self._waiting_rows >= settings.part_rows
                or self._waiting_bytes >= settings.part_bytes
            )
        if enough:
            self._wake.set()
        return True

    def _work(self) -> None:
        while not self._closed.is_set():
            self._wake.wait(self.settings.flush_s)
            self._wake.clear()
            if not self.flush():  # no hurry then, however many rows come
                self._closed.wait(self.settings.flush_s)
        self.flush()
        with self._queue_lock:
            self._dropped += self._waiting_rows
            self._waiting_rows = self._waiting_bytes = 0
            for queue in self._queues.values():
                queue.clear()

    def _next_rows(self, kind: Kind) -> list[Any]:
        """Those of the next part. They wait until they are written."""
        rows: list[Any] = []
        size = 0
        with self._queue_lock:
            for waiting in self._queues[kind.name]:
                size += waiting.size
                if rows and (
                    len(rows) >= self.settings.part_rows or size > self.settings.part_bytes
                ):
                    break
                rows.append(waiting.row)
        return rows

    def _write(self, kind: Kind, rows: list[Any]) -> None:
        self._serial += 1
        try:
            path, size = write_part(self.folder, kind, rows, self._serial)
        except OSError:
            raise
        except Exception:  # a row that no file can hold must not keep the others waiting
            if len(rows) > 1:
                half = len(rows) // 2
                self._write(kind, rows[:half])
                self._write(kind, rows[half:])
                return
            self._dropped += 1
        else:
            self._rows += len(rows)
            self._bytes += size
            assert self._parts is not None  # looked before
            self._parts.append(_Part(path, size))
        with self._queue_lock:
            for _ in rows:
                self._waiting_bytes -= self._queues[kind.name].popleft().size
            self._waiting_rows -= len(rows)

    def _look(self) -> None:
        """Which parts there are, from earlier starts too; unfinished ones are cleared away."""
        if self._parts is not None and self.folder.is_dir():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        found = []
        for file in self.folder.iterdir():
            named = PART.fullmatch(file.name)
            if named:
                found.append((named["begun"], _Part(file, file.stat().st_size)))
            elif UNFINISHED_PART.fullmatch(file.name) and self._is_abandoned(file):
                file.unlink(missing_ok=True)
        self._parts = deque(part for _, part in sorted(found))
        self._bytes = sum(part.size for part in self._parts)

    def _is_abandoned(self, file: Path) -> bool:
        return self._clock() - file.stat().st_mtime > ABANDONED_S

    def _trim(self) -> None:
        assert self._parts is not None  # looked before
        while self._parts and (
            self._bytes > self.settings.most_bytes or len(self._parts) > MOST_FILES
        ):
            self._parts[0].path.unlink(missing_ok=True)
            self._bytes -= self._parts.popleft().size
