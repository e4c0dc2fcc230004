"""The decision log: round trip, limits, faults of the disk, foreign and damaged files."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.serving.monitoring import decision_log
from loadmaster.serving.monitoring.decision_log import DecisionLog, LogSettings
from loadmaster.serving.monitoring.log_files import (
    DECISIONS,
    DecisionRow,
    FeedbackRow,
    read_feedback,
    read_log,
    write_part,
)

NOW = 1_800_000_000.25
MANUAL = LogSettings(flush_s=3600)  # writes on `flush` only


def decision(number: int, **change: Any) -> DecisionRow:
    row = DecisionRow(
        id=f"d{number}",
        time=NOW + number,
        system="tiny",
        mode="active",
        source="policy",
        cause=None,
        policy="tiny-one",
        version="0123456789ab",
        state=json.dumps({"load": number}),
        decision='{"replicas": 2}',
        shadow=None,
        reason='{"summary": "it is so"}',
        guard=("bounds: pods from 12 to 8",),
        latency_ms=1.5,
    )
    return row._replace(**change)


def read(folder: Path, **bounds: Any) -> list[DecisionRow]:
    def fail(line: str) -> None:
        pytest.fail(line)

    return list(read_log(folder, warn=fail, **bounds))


OpenLog = Callable[..., DecisionLog]


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def eventually(holds: Callable[[], bool], patience_s: float = 10.0) -> bool:
    deadline = time.monotonic() + patience_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.005)
    return holds()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[OpenLog]:
    """Open logs in the folder `log` and close them after the test."""
    made = []

    def open_log(settings: LogSettings = MANUAL, **more: Any) -> DecisionLog:
        made.append(DecisionLog(tmp_path / "log", settings, **more))
        return made[-1]

    yield open_log
    for log in made:
        log.close()


def test_rows_are_read_back(make: OpenLog) -> None:
    log = make()
    rows = [
        decision(0),
        decision(1, cause="timeout", source="fallback", shadow='{"decision": 1}', guard=()),
        decision(2, state='{"name": "Ω\\u0000"}', guard=("a", "b")),
    ]
    feedback = FeedbackRow("d0", NOW + 5, "tiny", '{"slow": false}', -3.25)
    unknown = feedback._replace(id=None)
    assert all(map(log.put_decision, rows))
    assert log.put_feedback(feedback)
    assert log.put_feedback(unknown)
    assert log.flush()
    expected = [row._replace(guard=list(row.guard)) for row in rows]
    assert read(log.folder) == expected
    assert list(read_feedback(log.folder)) == [feedback, unknown]
    status = log.status()
    assert status.rows == 5
    assert status.bytes == sum(part.stat().st_size for part in parts(log.folder))
    assert (status.dropped, status.fault) == (0, None)


def test_files_are_zstd_with_utc_times(make: OpenLog) -> None:
    log = make()
    log.put_decision(decision(0))
    log.flush()
    (part,) = parts(log.folder)
    assert part.name.startswith("decisions-20270115T080000.250000Z-")
    file = pq.ParquetFile(part)
    assert file.schema_arrow.field("time").type == pa.timestamp("us", tz="UTC")
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"


def test_rows_have_no_field_for_headers() -> None:
    fields = {*DecisionRow._fields, *FeedbackRow._fields}
    assert not fields & {"token", "headers", "authorization", "client"}


def test_read_log_filters_by_time(make: OpenLog) -> None:
    log = make(MANUAL.model_copy(update={"part_rows": 10}))
    for number in range(30):
        log.put_decision(decision(number))
    log.flush()
    assert len(parts(log.folder)) == 3
    ids = [row.id for row in read(log.folder, since=NOW + 8, until=NOW + 12)]
    assert ids == ["d8", "d9", "d10", "d11"]
    assert [row.id for row in read(log.folder, since=NOW + 28)] == ["d28", "d29"]
    assert read(log.folder, until=NOW) == []


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        (MANUAL.model_copy(update={"part_rows": 10}), 10),
        (MANUAL.model_copy(update={"part_bytes": 5600}), 10),
        (LogSettings(flush_s=0.05), 1),
    ],
)
def test_rows_are_written_by_count_size_or_age(
    make: OpenLog, settings: LogSettings, rows: int
) -> None:
    log = make(settings)
    for number in range(rows - 1):
        log.put_decision(decision(number))
    time.sleep(0.02)
    assert log.status().rows == 0
    log.put_decision(decision(rows))
    assert eventually(lambda: log.status().rows == rows)


def test_close_writes_the_queue(make: OpenLog) -> None:
    log = make()
    log.put_decision(decision(0))
    log.close()
    assert [row.id for row in read(log.folder)] == ["d0"]
    assert not log.put_decision(decision(1))
    assert log.status().dropped == 1


def test_full_queue_drops_and_counts_without_blocking(
    make: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    real = decision_log.write_part

    def stuck(*arguments: Any) -> Any:
        released.wait(10)
        return real(*arguments)

    monkeypatch.setattr(decision_log, "write_part", stuck)
    log = make(MANUAL.model_copy(update={"part_rows": 5, "queue_rows": 20}))
    start = time.perf_counter()
    taken = [log.put_decision(decision(number)) for number in range(50)]
    assert time.perf_counter() - start < 1
    assert taken == [True] * 20 + [False] * 30
    assert log.status().dropped == 30
    released.set()
    assert eventually(lambda: log.status().rows == 20)
    assert log.put_decision(decision(50))


def test_queue_is_bounded_in_bytes(make: OpenLog) -> None:
    log = make(MANUAL.model_copy(update={"queue_bytes": 20_000}))
    huge = json.dumps("x" * 8000)
    assert [log.put_decision(decision(n, state=huge)) for n in range(3)] == [True, True, False]
    log.flush()
    assert log.put_decision(decision(3, state=huge))


def test_full_disk_is_reported_and_recovers(make: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make(LogSettings(flush_s=0.02, queue_rows=10))
    full = True
    real = pq.write_table

    def write(table: pa.Table, file: Any, **options: Any) -> None:
        file.write(b"PAR1 and then no more")
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file.seek(0)
        file.truncate()
        real(table, file, **options)

    monkeypatch.setattr(pq, "write_table", write)
    for number in range(15):
        log.put_decision(decision(number))
    assert eventually(lambda: log.status().fault is not None)
    assert log.status().fault == f"cannot write to {log.folder}: No space left on device"
    assert log.status().dropped == 5
    assert list(log.folder.iterdir()) == []  # no partial file
    full = False
    assert eventually(lambda: log.status().rows == 10)
    assert eventually(lambda: log.status().fault is None)
    assert [row.id for row in read(log.folder)] == [f"d{n}" for n in range(10)]


def test_rows_lost_at_close_are_counted(make: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pq, "write_table", write)
    log = make()
    log.put_decision(decision(0))
    log.close()
    assert log.status().dropped == 1


def test_deleted_folder_is_created_again(make: OpenLog) -> None:
    log = make()
    log.put_decision(decision(0))
    log.flush()
    for part in parts(log.folder):
        part.unlink()
    log.folder.rmdir()
    log.put_decision(decision(1))
    assert log.flush()
    assert [row.id for row in read(log.folder)] == ["d1"]
    assert log.status().bytes == parts(log.folder)[0].stat().st_size


def test_unusable_folder_is_reported(make: OpenLog, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a file")
    log = make()
    log.put_decision(decision(0))
    assert not log.flush()
    assert "File exists" in (log.status().fault or "")
    (tmp_path / "log").unlink()
    assert log.flush()
    assert log.status()[2:] == (0, None)


def test_disk_use_is_bounded_by_deleting_the_oldest(make: OpenLog) -> None:
    log = make(MANUAL.model_copy(update={"most_bytes": 1 << 16, "part_rows": 5}))
    for number in range(200):
        noise = os.urandom(200).hex()
        log.put_decision(decision(number, state=json.dumps(noise)))
        if number % 5 == 4:
            log.flush()
            size = sum(part.stat().st_size for part in parts(log.folder))
            assert size == log.status().bytes <= 1 << 16
    kept = [int(row.id[1:]) for row in read(log.folder)]
    assert kept == list(range(200 - len(kept), 200))
    assert 10 <= len(kept) < 200


def test_files_of_an_earlier_run_count(make: OpenLog) -> None:
    small = MANUAL.model_copy(update={"most_bytes": 1 << 16})
    first = make(small)
    for number in range(6):
        first.put_decision(decision(number, state=json.dumps(os.urandom(4000).hex())))
        first.put_feedback(FeedbackRow("d", NOW + number, "tiny", "{}", 1.0))
        first.flush()
    first.close()
    (first.folder / "notes.txt").write_text("not a log")
    second = make(small)
    for number in range(6, 14):
        second.put_decision(decision(number, state=json.dumps(os.urandom(4000).hex())))
        second.flush()
    assert second.status().bytes == sum(part.stat().st_size for part in parts(second.folder))
    assert second.status().bytes <= 1 << 16
    assert read(second.folder)[-1].id == "d13"
    assert read(second.folder)[0].id != "d0"
    assert (second.folder / "notes.txt").exists()


def test_number_of_files_is_bounded(make: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_log, "MAX_FILES", 3)
    log = make()
    for number in range(6):
        log.put_decision(decision(number))
        log.flush()
    assert [row.id for row in read(log.folder)] == ["d3", "d4", "d5"]


def test_crash_leaves_an_unfinished_file_that_is_removed_later(
    make: OpenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "log"

    class Killed(BaseException):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", die)
        patch.setattr(Path, "unlink", die)
        with pytest.raises(Killed):
            write_part(folder, DECISIONS, [decision(0)], 1)
    (left,) = folder.iterdir()
    assert left.name.endswith(".partial")
    assert read(folder) == []
    make(clock=lambda: left.stat().st_mtime + 5).flush()
    assert left.exists()  # it may still be written
    age = left.stat().st_mtime
    make(clock=lambda: age + 3600).flush()
    assert not left.exists()


def test_invalid_row_is_dropped_alone(
    make: OpenLog,
) -> None:
    log = make()
    rows = [decision(n) for n in range(7)]
    rows[2] = decision(2, policy=None)
    rows[5] = decision(5, time=float("nan"))
    rows[6] = decision(6, state='"\ud800"')  # not valid UTF-8
    log.put_feedback(FeedbackRow("d1", NOW, "tiny", "{}", 1.0))
    for row in rows:
        log.put_decision(row)
    assert log.flush()
    assert [row.id for row in read(log.folder)] == ["d0", "d1", "d3", "d4", "d6"]
    assert read(log.folder)[-1].state == '"?"'
    assert log.status()[2:] == (2, None)
    assert len(list(read_feedback(log.folder))) == 1


def test_rows_of_many_threads_are_written(make: OpenLog) -> None:
    log = make(LogSettings(flush_s=0.01, part_rows=50))

    def put(thread: int) -> None:
        for number in range(300):
            assert log.put_decision(decision(thread * 1000 + number))

    threads = [threading.Thread(target=put, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    ids = [row.id for row in read(log.folder)]
    assert sorted(ids) == sorted(f"d{t * 1000 + n}" for t in range(4) for n in range(300))
    assert log.status().rows == 1200


def test_foreign_and_damaged_files_are_skipped_with_a_warning(
    make: OpenLog, tmp_path: Path
) -> None:
    log = make()
    log.put_decision(decision(0))
    log.flush()
    folder = log.folder
    whole = parts(folder)[0].read_bytes()
    (folder / "decisions-cut.parquet").write_bytes(whole[: len(whole) // 2])
    (folder / "decisions-empty.parquet").touch()
    (folder / "decisions-turned.parquet").write_bytes(
        whole[:200] + bytes(255 - byte for byte in whole[200:400]) + whole[400:]
    )
    pq.write_table(pa.table({"id": ["a"], "time": [1]}), folder / "other.parquet")
    (folder / "decisions-folder.parquet").mkdir()
    (folder / "notes.txt").write_text("no log")
    below = folder / "other system"
    write_part(below, DECISIONS, [decision(7)], 1)
    lines: list[str] = []
    assert [row.id for row in read_log(folder, warn=lines.append)] == ["d0", "d7"]
    for name in ("cut", "empty", "turned", "other", "folder"):
        assert sum(f"{name}.parquet" in line for line in lines) == 1
    assert len(lines) == 5
    assert all("\n" not in line for line in lines)
    with pytest.warns(UserWarning, match="passed over"):
        assert len(list(read_log(folder))) == 2


def test_additional_column_is_ignored(tmp_path: Path) -> None:
    part, _ = write_part(tmp_path, DECISIONS, [decision(0)], 1)
    table = pq.read_table(part)
    pq.write_table(table.append_column("colour", pa.array(["red"])), part)
    assert [row.id for row in read(tmp_path)] == ["d0"]


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_missing_folder_is_refused(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "log"
    if kind == "file":
        place.write_text("")
    with pytest.raises(InputError, match="folder"):
        list(read_log(place))


def test_put_takes_little_time(make: OpenLog) -> None:
    log = make(MANUAL.model_copy(update={"part_rows": 10**6}))
    rows = [decision(number) for number in range(5000)]
    seconds = []
    for start in range(0, 5000, 1000):
        start_s = time.perf_counter()
        for row in rows[start : start + 1000]:
            log.put_decision(row)
        seconds.append(time.perf_counter() - start_s)
    assert min(seconds) / 1000 < 50e-6


def test_log_and_monitor_import_no_heavy_package() -> None:
    code = (
        "import sys\n"
        "import loadmaster.serving.monitoring.decision_log\n"
        "import loadmaster.serving.monitoring.monitor\n"
        "print(sorted({'ray', 'torch', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
