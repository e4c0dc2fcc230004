"""State of the tenants of a system on disk: an SQLite database, which the control process owns.

SQLite needs no other service, commits many small changes atomically, finds a tenant by its name
among a million and is part of Python. In WAL mode reads never wait for the thread that writes.
Gateways send changes in batches (`tenant_store.py`), each of them one transaction.
"""

import asyncio
import logging
import sqlite3
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from loadmaster.envs.errors import InputError
from loadmaster.models.files import private_opener
from loadmaster.serving.decisions.request import to_json
from loadmaster.serving.decisions.tenant_names import DEFAULT_TENANT

log = logging.getLogger(__name__)

PRUNE_S = 10.0  # between deletions of what has expired
PRUNED_SHARE = 8  # if the file is too large, this part of each table goes, the oldest rows first
ROWS = 100  # of one statement: the thread holds the interpreter lock once for all of them
MAX_RECORD = 64 << 20  # bytes

SCHEMA = """
create table if not exists tenants (name text primary key, used real, state text, record blob);
create index if not exists tenants_used on tenants (used);
create table if not exists quantities (
    tenant text, name text, at real, record text, primary key (tenant, name)
) without rowid;
create index if not exists quantities_at on quantities (at);
create table if not exists responses (
    tenant text, id text, digest blob, at real, body blob, primary key (tenant, id)
);
create index if not exists responses_at on responses (at);
create table if not exists memories (tenant text primary key, at real, memory text);
create index if not exists memories_at on memories (at);
"""
AGES = {"tenants": "used", "quantities": "at", "responses": "at", "memories": "at"}


class TenantRows(NamedTuple):
    """Rows of the four tables; times are seconds since 1970."""

    tenants: Sequence[tuple[str, float, str, bytes]] = ()  # name, last use, state, JSON record
    quantities: Sequence[tuple[str, str, float, str]] = ()  # tenant, JSON name, time, JSON record
    responses: Sequence[tuple[str, str, bytes, float, bytes]] = ()  # tenant, id, digest, time, body
    memories: Sequence[tuple[str, float, str]] = ()  # tenant, time, what policies remember


class SavedTenant(NamedTuple):
    """What is stored of a tenant."""

    record: bytes | None = None  # JSON; None: there is none
    quantities: Sequence[tuple[str, str]] = ()  # name and record, both JSON; the oldest first
    responses: Sequence[tuple[str, bytes, float, bytes]] = ()  # id, digest, time, body
    memory: str = ""  # what policies remember


class TenantDatabase:
    """Called by the event loop only. `load` reads the disk at once, `write` in a thread."""

    def __init__(self, file: Path, window_s: float, keep_s: float, disk_bytes: int) -> None:
        """`window_s`, `keep_s`: how long histories of quantities and responses are of use."""
        self._file, self._disk_bytes = file, disk_bytes
        self._ages_s = {"quantities": window_s, "responses": keep_s}
        self._lock = threading.Lock()
        self._pruned_at = 0.0
        self._reader = self._open()
        rows = self._reader.execute("select state, count(*) from tenants group by state")
        self._states: Counter[str] = Counter(dict(rows.fetchall()))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tenant-database")
        self._writer: sqlite3.Connection | None = None  # of the thread

    def states(self) -> Counter[str]:
        """Number of tenants by lifecycle state."""
        with self._lock:
            return +self._states

    def load(self, tenant: str, now: float) -> SavedTenant:
        """Read what was written of a tenant; nothing if it cannot be read."""
        oldest = {table: now - age_s for table, age_s in self._ages_s.items()}
        try:
            found = self._reader.execute(
                "select record from tenants where name = ?", (tenant,)
            ).fetchone()
            quantities = self._reader.execute(
                "select name, record from quantities where tenant = ? and at > ? order by at",
                (tenant, oldest["quantities"]),
            ).fetchall()
            responses = self._reader.execute(
                "select id, digest, at, body from responses where tenant = ? and at > ? "
                "order by at",
                (tenant, oldest["responses"]),
            ).fetchall()
            memory = self._reader.execute(
                "select memory from memories where tenant = ?", (tenant,)
            ).fetchone()
            record = None if found is None else _unpacked(found[0])
        except (sqlite3.Error, zlib.error, TypeError) as fault:
            log.warning("%s: tenant %s cannot be read: %s", self._file, tenant, fault)
            return SavedTenant()
        return SavedTenant(record, quantities, responses, "" if memory is None else memory[0])

    async def write(self, rows: TenantRows) -> None:
        """Write all rows in one transaction; raises OSError or sqlite3.Error, without a change."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write, rows)

    async def create_default(self, record: Any, state: str) -> None:
        """Store the default tenant if it is not; `record`: of before there were tenants."""
        if self.load(DEFAULT_TENANT, 0.0).record is None:
            encoded = to_json({} if record is None else {"recorder": record})
            await self.write(TenantRows([(DEFAULT_TENANT, time.time(), state, encoded)]))

    def close(self) -> None:
        """Finish the writes."""
        self._thread.submit(self._close_writer)
        self._thread.shutdown()
        self._reader.close()

    # The thread.

    def _write(self, rows: TenantRows) -> None:
        if self._writer is None:
            self._writer = sqlite3.connect(self._file)
            self._writer.execute("pragma synchronous = normal")  # synced at checkpoints
        database = self._writer
        with database:
            changed = self._insert_all(database, rows)
        self._count(changed)
        if time.monotonic() - self._pruned_at > PRUNE_S:
            self._pruned_at = time.monotonic()
            self._prune(database, time.time())

    def _insert_all(self, database: sqlite3.Connection, rows: TenantRows) -> Counter[str]:
        """Returns the change of the number of tenants by state."""
        changed: Counter[str] = Counter()
        names = [name for name, *_ in rows.tenants]
        for start in range(0, len(names), ROWS):
            some = names[start : start + ROWS]
            marks = ",".join("?" * len(some))
            found = database.execute(f"select state from tenants where name in ({marks})", some)
            changed.subtract(state for (state,) in found.fetchall())
        latest = {name: state for name, _, state, _ in rows.tenants}
        changed.update(latest.values())
        _insert(database, "quantities", rows.quantities)
        _insert(database, "responses", rows.responses)
        _insert(database, "memories", rows.memories)
        packed = ((name, at, state, zlib.compress(one, 1)) for name, at, state, one in rows.tenants)
        _insert(database, "tenants", packed)
        return changed

    def _count(self, changed: Counter[str]) -> None:
        with self._lock:
            self._states.update(changed)

    def _prune(self, database: sqlite3.Connection, now: float) -> None:
        """Delete what has expired, and the oldest rows if the file is too large."""
        with database:
            for table, age_s in self._ages_s.items():
                database.execute(f"delete from {table} where at <= ?", (now - age_s,))
        for _ in range(PRUNED_SHARE):
            pages, free, size = (
                database.execute(f"pragma {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
            if (pages - free) * size <= self._disk_bytes * (PRUNED_SHARE - 1) / PRUNED_SHARE:
                return
            with database:
                deleted = _delete_oldest(database)
            self._count(Counter({state: -number for state, number in deleted.items()}))

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _open(self) -> sqlite3.Connection:
        """Connect, and create what is missing. A damaged file is renamed."""
        for attempt in range(2):
            try:
                with open(self._file, "ab", opener=private_opener):
                    pass
                # The loop may run in another thread than the one that creates this object.
                database = sqlite3.connect(
                    self._file, isolation_level=None, check_same_thread=False
                )
                database.execute("pragma journal_mode = wal")
                database.execute(f"pragma journal_size_limit = {16 << 20}")
                database.executescript(SCHEMA)
                database.execute("select count(*) from (select 1 from tenants limit 1)")
                return database
            except (sqlite3.Error, OSError) as fault:
                if attempt or isinstance(fault, OSError | sqlite3.OperationalError):
                    line = f"{self._file}: {fault}; expected a file that can be written"
                    raise InputError(line) from None
                damaged = self._file.with_suffix(".damaged")
                log.warning("%s cannot be read (%s); renamed to %s", self._file, fault, damaged)
                self._file.replace(damaged)
                for suffix in ("-wal", "-shm"):
                    self._file.with_name(self._file.name + suffix).unlink(missing_ok=True)
        raise AssertionError


def _insert(database: sqlite3.Connection, table: str, rows: Iterable[Sequence[Any]]) -> None:
    """Insert or replace rows, many with one statement."""
    left = list(rows)
    while left:
        some, left = left[:ROWS], left[ROWS:]
        marks = ",".join([f"({','.join('?' * len(some[0]))})"] * len(some))
        values = [value for row in some for value in row]
        database.execute(f"insert or replace into {table} values {marks}", values)


def _delete_oldest(database: sqlite3.Connection) -> Counter[str]:
    """Delete a share of each table, the oldest rows; return the deleted tenants by state."""
    deleted: Counter[str] = Counter()
    for table, age in AGES.items():
        (count,) = database.execute(f"select count(*) from {table}").fetchone()
        key = "(tenant, name)" if table == "quantities" else "rowid"  # it has no row ids
        oldest = f"select {key.strip('()')} from {table} order by {age} limit ?"
        command = f"delete from {table} where {key} in ({oldest})"
        if table == "tenants":
            command += f" and name <> '{DEFAULT_TENANT}' returning state"
        found = database.execute(command, (1 + count // PRUNED_SHARE,)).fetchall()
        deleted.update(state for (state,) in found)
    return deleted


def _unpacked(blob: bytes) -> bytes:
    return zlib.decompressobj().decompress(blob, MAX_RECORD)
