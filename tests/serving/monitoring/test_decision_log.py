"""The decision log: what is written is read back, and nothing that befalls the disk is fatal."""

from __future__ import annotations

import errno
import json
import os
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
SLOW = LogSettings(flush_s=3600)  # only what a test asks for is written


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


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def eventually(holds: Callable[[], bool], patience_s: float = 10.0) -> bool:
    deadline = time.monotonic() + patience_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.005)
    return holds()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., DecisionLog]]:
    """Logs in the folder `log`, closed in the end."""
    made = []

    def open_log(settings: LogSettings = SLOW, **more: Any) -> DecisionLog:
        made.append(DecisionLog(tmp_path / "log", settings, **more))
        return made[-1]

    yield open_log
    for log in made:
        log.close()


def test_what_is_put_is_read_back(make: Callable[..., DecisionLog]) -> None:
    log = make()
    rows = [
        decision(0),
        decision(1, cause="timeout", source="fallback", shadow='{"decision": 1}', guard=()),
        decision(2, state='{"name": "Ω\\u0000"}', guard=("a", "b")),
    ]
    told = FeedbackRow("d0", NOW + 5, "tiny", '{"slow": false}', -3.25)
    unknown = told._replace(id=None)
    assert all(map(log.put_decision, rows))
    assert log.put_feedback(told)
    assert log.put_feedback(unknown)
    assert log.flush()
    expected = [row._replace(guard=list(row.guard)) for row in rows]
    assert read(log.folder) == expected
    assert list(read_feedback(log.folder)) == [told, unknown]
    status = log.status()
    assert status.rows == 5
    assert status.bytes == sum(part.stat().st_size for part in parts(log.folder))
    assert (status.dropped, status.fault) == (0, None)


def test_files_are_zstd_with_times_in_utc(make: Callable[..., DecisionLog]) -> None:
    log = make()
    log.put_decision(decision(0))
    log.flush()
    (part,) = parts(log.folder)
    assert part.name.startswith("decisions-20270115T080000.250000Z-")
    file = pq.ParquetFile(part)
    assert file.schema_arrow.field("time").type == pa.timestamp("us", tz="UTC")
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"


def test_nothing_of_a_request_but_its_state_can_be_logged() -> None:
    fields = {*DecisionRow._fields, *FeedbackRow._fields}
    assert not fields & {"token", "headers", "authorization", "client"}


def test_times_bound_what_is_read(make: Callable[..., DecisionLog]) -> None:
    log = make(SLOW.model_copy(update={"part_rows": 10}))
    for number in range(30):
        log.put_decision(decision(number))
    log.flush()
    assert len(parts(log.folder)) == 3
    ids = [row.id for row in read(log.folder, since=NOW + 8, until=NOW + 12)]
    assert ids == ["d8", "d9", "d10", "d11"]
    assert [row.id for row in read(log.folder, since=NOW + 28)] == ["d28", "d29"]
    assert read(log.folder, until=NOW) == []


def test_rows_are_written_by_count(make: Callable[..., DecisionLog]) -> None:
    log = make(SLOW.model_copy(update={"part_rows": 10}))
    for number in range(9):
        log.put_decision(decision(number))
    time.sleep(0.05)
    assert log.status().rows == 0
    log.put_decision(decision(9))
    assert eventually(lambda: log.status().rows == 10)


def test_rows_are_written_by_size(make: Callable[..., DecisionLog]) -> None:
    log = make(SLOW.model_copy(update={"part_bytes": 4096}))
    log.put_decision(decision(0, state=json.dumps("x" * 5000)))
    assert eventually(lambda: log.status().rows == 1)


def test_rows_are_written_by_age(make: Callable[..., DecisionLog]) -> None:
    log = make(LogSettings(flush_s=0.05))
    log.put_decision(decision(0))
    assert eventually(lambda: log.status().rows == 1)


def test_closing_writes_what_waits(make: Callable[..., DecisionLog]) -> None:
    log = make()
    log.put_decision(decision(0))
    log.close()
    assert [row.id for row in read(log.folder)] == ["d0"]
    assert not log.put_decision(decision(1))
    assert log.status().dropped == 1


def test_a_full_queue_drops_and_counts(
    make: Callable[..., DecisionLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    going = threading.Event()
    real = decision_log.write_part

    def stuck(*arguments: Any) -> Any:
        going.wait(10)
        return real(*arguments)

    monkeypatch.setattr(decision_log, "write_part", stuck)
    log = make(SLOW.model_copy(update={"part_rows": 5, "queue_rows": 20}))
    start = time.perf_counter()
    taken = [log.put_decision(decision(number)) for number in range(50)]
    assert time.perf_counter() - start < 1  # nobody waits for the disk
    assert taken == [True] * 20 + [False] * 30
    assert log.status().dropped == 30
    going.set()
    assert eventually(lambda: log.status().rows == 20)
    assert log.put_decision(decision(50))


def test_a_queue_is_bounded_in_bytes_too(make: Callable[..., DecisionLog]) -> None:
    log = make(SLOW.model_copy(update={"queue_bytes": 20_000}))
    huge = json.dumps("x" * 8000)
    assert [log.put_decision(decision(n, state=huge)) for n in range(3)] == [True, True, False]
    log.flush()
    assert log.put_decision(decision(3, state=huge))


def test_a_full_disk_is_told_and_recovers(
    make: Callable[..., DecisionLog], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert list(log.folder.iterdir()) == []  # nothing half written, under any name
    full = False
    assert eventually(lambda: log.status().rows == 10)
    assert eventually(lambda: log.status().fault is None)
    assert [row.id for row in read(log.folder)] == [f"d{n}" for n in range(10)]


def test_a_full_disk_at_the_end_counts_what_is_lost(
    make: Callable[..., DecisionLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pq, "write_table", write)
    log = make()
    log.put_decision(decision(0))
    log.close()
    assert log.status().dropped == 1


def test_a_folder_that_is_gone_is_made_again(make: Callable[..., DecisionLog]) -> None:
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


def test_a_folder_that_cannot_be_is_told(make: Callable[..., DecisionLog], tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a file")
    log = make()
    log.put_decision(decision(0))
    assert not log.flush()
    assert "File exists" in (log.status().fault or "")
    (tmp_path / "log").unlink()
    assert log.flush()
    assert log.status()[2:] == (0, None)


def test_the_disk_use_is_bounded_and_the_oldest_go(make: Callable[..., DecisionLog]) -> None:
    log = make(SLOW.model_copy(update={"most_bytes": 1 << 16, "part_rows": 5}))
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


def test_a_later_start_goes_on_counting(make: Callable[..., DecisionLog]) -> None:
    small = SLOW.model_copy(update={"most_bytes": 1 << 16})
    first = make(small)
    for number in range(6):
        first.put_decision(decision(number, state=json.dumps(os.urandom(4000).hex())))
        first.put_feedback(FeedbackRow("d", NOW + number, "tiny", "{}", 1.0))
        first.flush()
    first.close()
    (first.folder / "notes.txt").write_text("of somebody else")
    second = make(small)
    for number in range(6, 14):
        second.put_decision(decision(number, state=json.dumps(os.urandom(4000).hex())))
        second.flush()
    assert second.status().bytes == sum(part.stat().st_size for part in parts(second.folder))
    assert second.status().bytes <= 1 << 16
    assert read(second.folder)[-1].id == "d13"
    assert read(second.folder)[0].id != "d0"
    assert (second.folder / "notes.txt").exists()


def test_files_are_bounded_in_number(
    make: Callable[..., DecisionLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_log, "MOST_FILES", 3)
    log = make()
    for number in range(6):
        log.put_decision(decision(number))
        log.flush()
    assert [row.id for row in read(log.folder)] == ["d3", "d4", "d5"]


def test_a_crash_before_the_rename_leaves_no_broken_file(
    make: Callable[..., DecisionLog], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "log"

    class Killed(BaseException):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", die)
        patch.setattr(Path, "unlink", die)  # a killed process tidies nothing up
        with pytest.raises(Killed):
            write_part(folder, DECISIONS, [decision(0)], 1)
    (left,) = folder.iterdir()
    assert left.name.endswith(".parquet.partial")
    assert read(folder) == []
    make(clock=lambda: left.stat().st_mtime + 5).flush()
    assert left.exists()  # somebody else may be writing it
    age = left.stat().st_mtime
    make(clock=lambda: age + 3600).flush()
    assert not left.exists()


def test_a_row_that_no_file_can_hold_keeps_no_other_waiting(
    make: Callable[..., DecisionLog],
) -> None:
    log = make()
    rows = [decision(n) for n in range(7)]
    rows[2] = decision(2, state=None)
    rows[5] = decision(5, time=float("nan"))
    rows[6] = decision(6, state='"\ud800"')  # no UTF-8, but a text
    log.put_feedback(FeedbackRow("d1", NOW, "tiny", "{}", 1.0))
    for row in rows:
        log._put(DECISIONS, row, 1)
    assert log.flush()
    assert [row.id for row in read(log.folder)] == ["d0", "d1", "d3", "d4", "d6"]
    assert read(log.folder)[-1].state == '"?"'
    assert log.status()[2:] == (2, None)
    assert len(list(read_feedback(log.folder))) == 1


def test_many_threads_may_put(make: Callable[..., DecisionLog]) -> None:
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


def test_foreign_and_damaged_files_are_named_and_passed_over(
    make: Callable[..., DecisionLog], tmp_path: Path
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
    told = " ".join(lines)
    for name in ("cut", "empty", "turned", "other", "folder"):
        assert f"{name}.parquet is passed over: " in told
    assert "expected timestamp[us, tz=UTC] under 'time'" in told
    assert len(lines) == 5
    assert all("\n" not in line for line in lines)
    with pytest.warns(UserWarning, match="passed over"):
        assert len(list(read_log(folder))) == 2


def test_a_column_that_a_later_version_adds_does_no_harm(tmp_path: Path) -> None:
    part, _ = write_part(tmp_path, DECISIONS, [decision(0)], 1)
    table = pq.read_table(part)
    pq.write_table(table.append_column("colour", pa.array(["red"])), part)
    assert [row.id for row in read(tmp_path)] == ["d0"]


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_a_folder_that_is_none_is_refused(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "log"
    if kind == "file":
        place.write_text("")
    with pytest.raises(InputError, match="expected the folder of a decision log"):
        list(read_log(place))


def test_putting_costs_little(make: Callable[..., DecisionLog]) -> None:
    log = make(SLOW.model_copy(update={"part_rows": 10**6}))
    rows = [decision(number) for number in range(5000)]
    seconds = []
    for start in range(0, 5000, 1000):
        begun = time.perf_counter()
        for row in rows[start : start + 1000]:
            log.put_decision(row)
        seconds.append(time.perf_counter() - begun)
    assert min(seconds) / 1000 < 50e-6


def test_the_log_imports_no_ray_and_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys\n"
        "import loadmaster.serving.monitoring.decision_log\n"
        "import loadmaster.serving.monitoring.monitor\n"
        "print(sorted({'ray', 'torch', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
