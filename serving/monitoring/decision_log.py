"""The decision log of an endpoint: rows are queued and written by a thread.

Decisions never wait for the disk or the object store. A full queue drops rows and counts them.
While the disk is full or the folder cannot be written, rows stay in the queue and `fault` has the
reason. Request headers do not get here, so no token can be logged.
"""

import threading
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, field_validator

from loadmaster.envs.settings import Settings
from loadmaster.models.storage import Location, Place, StorageError, is_remote, parse_place
from loadmaster.serving.monitoring.log_files import (
    DECISIONS,
    FEEDBACK,
    DecisionRow,
    FeedbackRow,
    list_parts,
    remove_part,
    write_part,
)

MAX_FILES = 20_000  # a folder with more is slow to list
ABANDONED_S = 600.0  # age from which an unfinished file is removed
ROW_BYTES = 500  # memory of a row without its texts
KINDS = {DecisionRow: DECISIONS, FeedbackRow: FEEDBACK}


class LogSettings(Settings):
    folder: str | None = None  # path or URL; None: log/SYSTEM in the service's folder
    most_bytes: int = Field(default=512 << 20, ge=1 << 16)  # on disk; the oldest files go
    part_rows: int = Field(default=2000, ge=1)  # rows of a file
    part_bytes: int = Field(default=8 << 20, ge=1 << 10)  # rows of a file, by their size in memory
    flush_s: float = Field(default=10.0, gt=0)  # longest time that rows wait
    queue_rows: int = Field(default=20_000, ge=1)  # capacity of the queue
    queue_bytes: int = Field(default=64 << 20, ge=1 << 10)

    @field_validator("folder")
    @classmethod
    def absolute(cls, folder: str | None) -> str | None:
        """Replicas have another working directory."""
        if folder is None or is_remote(folder):
            return folder
        return str(Path(str(parse_place(folder))).absolute())

    def check_folder(self) -> None:
        """Raise InputError if a log at a URL cannot be written."""
        if self.folder is not None and is_remote(self.folder):
            Location.of(self.folder).check_writable()


def log_folder(default: Path, settings: LogSettings) -> Place:
    """Where the log is: `default`, unless the settings name another folder."""
    return default if settings.folder is None else parse_place(settings.folder)


class LogStatus(NamedTuple):
    rows: int  # written since the start
    bytes: int  # on disk
    dropped: int
    fault: str | None  # why rows cannot be written now


class DecisionLog:
    """Accepts rows from any thread. `close` writes those in the queue."""

    def __init__(self, folder: Path, settings: LogSettings | None = None) -> None:
        """`folder`: unless the settings name another one."""
        self.settings = settings or LogSettings()
        self.folder: Place = log_folder(folder, self.settings)
        self._queue_lock = threading.Lock()
        self._queues: dict[type, deque[tuple[Any, int]]] = {row: deque() for row in KINDS}  # sizes
        self._queued_rows = self._queued_bytes = 0
        self._dropped = 0
        self._disk_lock = threading.Lock()  # one writer at a time
        # Files and sizes, oldest first; None: not listed yet
        self._parts: deque[tuple[str, int]] | None = None
        self._bytes = self._rows = self._serial = 0
        self._fault: str | None = None
        self._closed = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name="decision-log", daemon=True)
        self._thread.start()

    def put(self, row: DecisionRow | FeedbackRow) -> bool:
        """Queue a row; False if the queue is full."""
        settings, size = self.settings, ROW_BYTES
        for value in row:
            if isinstance(value, str):
                size += len(value)
            elif isinstance(value, tuple):
                size += sum(map(len, value))
        with self._queue_lock:
            if (
                self._closed.is_set()
                or self._queued_rows >= settings.queue_rows
                or self._queued_bytes + size > settings.queue_bytes
            ):
                self._dropped += 1
                return False
            self._queues[type(row)].append((row, size))
            self._queued_rows += 1
            self._queued_bytes += size
            enough = (
                self._queued_rows >= settings.part_rows or self._queued_bytes >= settings.part_bytes
            )
        if enough:
            self._wake.set()
        return True

    def status(self) -> LogStatus:
        return LogStatus(self._rows, self._bytes, self._dropped, self._fault)

    def flush(self) -> bool:
        """Write the queue now; False if that fails, with the reason in `status`."""
        with self._disk_lock:
            try:
                parts = self._list_parts()
                for kind in KINDS:
                    while rows := self._next_rows(kind):
                        self._write(kind, rows, parts)
                while parts and (self._bytes > self.settings.most_bytes or len(parts) > MAX_FILES):
                    remove_part(self.folder, parts[0][0])
                    self._bytes -= parts.popleft()[1]
            except Exception as fault:  # must not stop the thread
                reason = getattr(fault, "strerror", None) or str(fault) or type(fault).__name__
                of_url = isinstance(fault, StorageError)  # its line has the URL
                self._fault = reason if of_url else f"cannot write to {self.folder}: {reason}"
                return False
            self._fault = None
            return True

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop accepting rows and write the queue; rows that cannot be written count as dropped."""
        self._closed.set()
        self._wake.set()
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while not self._closed.is_set():
            self._wake.wait(self.settings.flush_s)
            self._wake.clear()
            if not self.flush():  # retry after a pause, however many rows arrive
                self._closed.wait(self.settings.flush_s)
        self.flush()
        with self._queue_lock:
            self._dropped += self._queued_rows
            self._queued_rows = self._queued_bytes = 0
            for queue in self._queues.values():
                queue.clear()

    def _next_rows(self, kind: type) -> list[Any]:
        """Rows of the next file. They leave the queue once they are written."""
        rows: list[Any] = []
        total = 0
        with self._queue_lock:
            for row, size in self._queues[kind]:
                total += size
                if rows and (
                    len(rows) >= self.settings.part_rows or total > self.settings.part_bytes
                ):
                    break
                rows.append(row)
        return rows

    def _write(self, kind: type, rows: list[Any], parts: deque[tuple[str, int]]) -> None:
        self._serial += 1
        try:
            parts.append(write_part(self.folder, KINDS[kind], rows, self._serial))
        except (OSError, StorageError):
            raise
        except Exception:  # an invalid row: write the others
            if len(rows) > 1:
                half = len(rows) // 2
                self._write(kind, rows[:half], parts)
                self._write(kind, rows[half:], parts)
                return
            self._dropped += 1
        else:
            self._rows += len(rows)
            self._bytes += parts[-1][1]
        with self._queue_lock:
            for _ in rows:
                self._queued_bytes -= self._queues[kind].popleft()[1]
            self._queued_rows -= len(rows)

    def _list_parts(self) -> deque[tuple[str, int]]:
        """List the files, also those of earlier runs; delete abandoned unfinished ones."""
        if self._parts is not None and (isinstance(self.folder, Location) or self.folder.is_dir()):
            return self._parts
        self._parts = deque(list_parts(self.folder, ABANDONED_S))
        self._bytes = sum(size for _, size in self._parts)
        return self._parts
