"""The decision log: round trip, limits, faults of the disk, foreign and damaged files."""

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.serving.monitoring import decision_log, log_files
from loadmaster.serving.monitoring.decision_log import DecisionLog, LogSettings
from loadmaster.serving.monitoring.log_files import DECISIONS, DecisionRow, FeedbackRow, read_log

NOW = 1_800_000_000.25


def decision(number: int, **change: Any) -> DecisionRow:
    row = DecisionRow(
        id=f"d{number}", time=NOW + number, system="tiny", mode="active", source="policy",
        cause=None, policy="tiny-one", version="0123456789ab", state=json.dumps({"load": number}),
        decision='{"replicas": 2}', shadow=None, reason='{"summary": "it is so"}',
        guard=("bounds: pods from 12 to 8",), latency_ms=1.5,
    )  # fmt: skip
    return row._replace(**change)


def put(log: DecisionLog, *numbers: int, **change: Any) -> list[bool]:
    """Whether each of these decisions was accepted."""
    return [log.put(decision(number, **change)) for number in numbers]


def read(folder: Path, **bounds: Any) -> list[DecisionRow]:
    return list(read_log(folder, warn=pytest.fail, **bounds))


def ids(folder: Path, **bounds: Any) -> list[int]:
    return [int(row.id[1:]) for row in read(folder, **bounds)]


def disk_full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


OpenLog = Callable[..., DecisionLog]


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.005)
    return holds()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[OpenLog]:
    """Open logs in the folder `log`, written on `flush` only; close them after the test."""
    made = []

    def open_log(**settings: Any) -> DecisionLog:
        made.append(DecisionLog(tmp_path / "log", LogSettings(**{"flush_s": 3600, **settings})))
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
    assert all(map(log.put, [*rows, feedback, feedback._replace(id=None)]))
    assert log.flush()
    assert read(log.folder) == [row._replace(guard=list(row.guard)) for row in rows]
    decisions, other = map(pq.ParquetFile, parts(log.folder))
    assert other.read().select(["id", "outcome", "reward"]).to_pylist() == [
        {"id": id_, "outcome": '{"slow": false}', "reward": -3.25} for id_ in ("d0", None)
    ]
    assert parts(log.folder)[0].name.startswith("decisions-20270115T080000.250000Z-")
    assert decisions.schema_arrow.field("time").type == pa.timestamp("us", tz="UTC")
    assert decisions.metadata.row_group(0).column(0).compression == "ZSTD"
    size = sum(part.stat().st_size for part in parts(log.folder))
    assert log.status() == (5, size, 0, None)


def test_logs_from_before_tenants_are_read(make: OpenLog) -> None:
    log = make()
    put(log, 1, tenant="a")
    log.close()
    (part,) = parts(log.folder)
    assert [row.tenant for row in read(log.folder)] == ["a"]
    pq.write_table(pq.read_table(part).drop_columns("tenant"), part)
    assert [(row.id, row.tenant) for row in read(log.folder)] == [("d1", "default")]


def test_read_log_filters_by_time(make: OpenLog) -> None:
    log = make(part_rows=10)
    put(log, *range(30))
    log.flush()
    assert len(parts(log.folder)) == 3
    assert ids(log.folder, since=NOW + 8, until=NOW + 12) == [8, 9, 10, 11]
    assert ids(log.folder, since=NOW + 28) == [28, 29]
    assert ids(log.folder, until=NOW) == []


@pytest.mark.parametrize(
    ("settings", "rows"),
    [({"part_rows": 10}, 10), ({"part_bytes": 5900}, 10), ({"flush_s": 0.05}, 1)],
)
def test_rows_are_written_in_parts(make: OpenLog, settings: dict[str, Any], rows: int) -> None:
    log = make(**settings)
    put(log, *range(rows - 1))
    time.sleep(0.02)
    assert log.status().rows == 0
    put(log, rows)
    assert eventually(lambda: log.status().rows == rows)


@pytest.mark.parametrize("full", [False, True])
def test_close_writes_the_queue_or_counts_its_rows_as_dropped(
    make: OpenLog, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    if full:
        monkeypatch.setattr(pq, "write_table", disk_full)
    log = make()
    put(log, 0)
    log.close()
    assert ids(log.folder) == ([] if full else [0])
    assert log.status().dropped == full
    assert put(log, 1) == [False]
    assert log.status().dropped == full + 1


def test_full_queue_drops_without_blocking(make: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    real = decision_log.write_part

    def stuck(*arguments: Any) -> Any:
        released.wait(10)
        return real(*arguments)

    monkeypatch.setattr(decision_log, "write_part", stuck)
    log = make(part_rows=5, queue_rows=20)
    start = time.perf_counter()
    assert put(log, *range(50)) == [True] * 20 + [False] * 30
    assert time.perf_counter() - start < 1
    assert log.status().dropped == 30
    released.set()
    assert eventually(lambda: log.status().rows == 20)
    assert put(log, 50) == [True]


def test_queue_is_bounded_in_bytes(make: OpenLog) -> None:
    log = make(queue_bytes=20_000)
    huge = json.dumps("x" * 8000)
    assert put(log, 0, 1, 2, state=huge) == [True, True, False]
    log.flush()
    assert put(log, 3, state=huge) == [True]


def test_full_disk_is_reported_and_recovers(make: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make(flush_s=0.02, queue_rows=10)
    with monkeypatch.context() as patch:
        patch.setattr(pq, "write_table", disk_full)
        put(log, *range(15))
        assert eventually(lambda: log.status().fault is not None)
        assert log.status().fault == f"cannot write to {log.folder}: No space left on device"
        assert log.status().dropped == 5
        assert list(log.folder.glob("*.parquet")) == []
    assert eventually(lambda: log.status()[0] == 10 and log.status().fault is None)
    assert ids(log.folder) == list(range(10))
    assert len(list(log.folder.iterdir())) == len(parts(log.folder))  # no partial file


def test_unusable_folder_is_reported_and_created_again(make: OpenLog, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a file")
    log = make()
    put(log, 0)
    assert not log.flush()
    assert "File exists" in (log.status().fault or "")
    (tmp_path / "log").unlink()
    assert log.flush()
    assert log.status()[2:] == (0, None)
    shutil.rmtree(log.folder)
    put(log, 1)
    assert log.flush()
    assert ids(log.folder) == [1]
    assert log.status().bytes == parts(log.folder)[0].stat().st_size


def test_disk_use_is_bounded_by_deleting_the_oldest(make: OpenLog) -> None:
    """Files of an earlier run count, others do not."""
    for run in range(2):
        log = make(most_bytes=1 << 16)
        for number in range(10 * run, 10 * run + 10):
            put(log, number, state=json.dumps(os.urandom(4000).hex()))
            log.put(FeedbackRow("d", NOW + number, "tiny", "{}", 1.0))
            log.flush()
            size = sum(part.stat().st_size for part in parts(log.folder))
            assert size == log.status().bytes <= 1 << 16
        log.close()
        (log.folder / "notes.txt").write_text("not a log")
    kept = ids(log.folder)
    assert kept == list(range(20 - len(kept), 20))
    assert 5 <= len(kept) < 15
    assert (log.folder / "notes.txt").exists()


def test_number_of_files_is_bounded(make: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_log, "MAX_FILES", 3)
    log = make()
    for number in range(6):
        put(log, number)
        log.flush()
    assert ids(log.folder) == [3, 4, 5]


def test_crash_leaves_an_unfinished_file_that_is_removed_later(
    make: OpenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "log"

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", die)
        patch.setattr(Path, "unlink", die)
        with pytest.raises(KeyboardInterrupt):
            log_files.write_part(folder, DECISIONS, [decision(0)], 1)
    (left,) = folder.iterdir()
    assert left.name.endswith(".partial")
    assert ids(folder) == []
    make().flush()
    assert left.exists()  # it may still be written
    os.utime(left, (0, time.time() - 3600))
    make().flush()
    assert not left.exists()


def test_invalid_row_is_dropped_alone(make: OpenLog) -> None:
    log = make()
    put(log, 0, 1)
    put(log, 2, policy=None)
    put(log, 3, 4)
    put(log, 5, time=float("nan"))
    put(log, 6, state='"\ud800"', guard=("\ud800",))  # not valid UTF-8
    assert log.flush()
    assert ids(log.folder) == [0, 1, 3, 4, 6]
    assert (read(log.folder)[-1].state, read(log.folder)[-1].guard) == ('"?"', ["?"])
    assert log.status()[2:] == (2, None)


def test_rows_of_many_threads_are_written(make: OpenLog) -> None:
    log = make(flush_s=0.01, part_rows=50)
    with ThreadPoolExecutor(4) as threads:
        put_all = [threads.submit(put, log, *range(n, n + 300)) for n in range(0, 1200, 300)]
    assert all(all(one.result()) for one in put_all)
    log.close()
    assert sorted(ids(log.folder)) == list(range(1200))
    assert log.status().rows == 1200


def test_foreign_and_damaged_files_are_skipped_with_a_warning(tmp_path: Path) -> None:
    name, _ = log_files.write_part(tmp_path, DECISIONS, [decision(0)], 1)
    part = tmp_path / name
    pq.write_table(pq.read_table(part).append_column("colour", pa.array(["red"])), part)
    whole = part.read_bytes()
    turned = whole[:200] + bytes(255 - byte for byte in whole[200:400]) + whole[400:]
    for name, content in (("cut", whole[: len(whole) // 2]), ("empty", b""), ("turned", turned)):
        (tmp_path / f"decisions-{name}.parquet").write_bytes(content)
    pq.write_table(pa.table({"id": ["a"], "time": [1]}), tmp_path / "other.parquet")
    (tmp_path / "decisions-folder.parquet").mkdir()
    (tmp_path / "notes.txt").write_text("no log")
    log_files.write_part(tmp_path / "other system", DECISIONS, [decision(7)], 1)
    lines: list[str] = []
    assert [row.id for row in read_log(tmp_path, warn=lines.append)] == ["d0", "d7"]
    for name in ("cut", "empty", "turned", "other", "folder"):
        assert sum(f"{name}.parquet" in line for line in lines) == 1
    assert len(lines) == 5
    assert all("\n" not in line for line in lines)
    with pytest.warns(UserWarning, match="passed over"):
        assert len(list(read_log(tmp_path))) == 2


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "missing"):
        with pytest.raises(InputError, match="folder"):
            list(read_log(tmp_path / name))


def test_log_and_monitor_import_no_heavy_package() -> None:
    code = (
        "import sys; from loadmaster.serving.monitoring import decision_log, monitor\n"
        "sys.exit(len({'ray', 'torch', 'numba'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
