"""A decision log in a bucket, and a service whose bundle and log are there."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.models.storage import Location
from loadmaster.serving.monitoring.decision_log import DecisionLog, LogSettings
from loadmaster.serving.monitoring.log_files import DecisionRow, read_log
from tests.object_store import ObjectStore
from tests.serving import toy
from tests.serving.conftest import open_service
from tests.serving.monitoring.test_decision_log import NOW, decision

OpenLog = Callable[..., DecisionLog]


@pytest.fixture
def place(s3: ObjectStore) -> Location:
    return Location.of(f"{s3.bucket()}/log/tiny")


@pytest.fixture
def open_log(place: Location, tmp_path: Path) -> Iterator[OpenLog]:
    opened: list[DecisionLog] = []

    def begin(**settings: Any) -> DecisionLog:
        values = {"folder": str(place), "flush_s": 60.0, **settings}
        opened.append(DecisionLog(tmp_path / "unused", build_settings(LogSettings, values)))
        return opened[-1]

    yield begin
    for each in opened:
        each.close()
    assert not (tmp_path / "unused").exists()


def rows(place: Location, **bounds: Any) -> list[DecisionRow]:
    return list(read_log(place, warn=pytest.fail, **bounds))


def test_rows_are_written_and_read_by_url(open_log: OpenLog, place: Location) -> None:
    log = open_log(part_rows=2)
    written = [decision(number) for number in range(5)]
    assert all(log.put(row) for row in written)
    assert log.flush()
    assert rows(place) == [row._replace(guard=list(row.guard)) for row in written]
    assert [row.id for row in rows(place, since=NOW + 1, until=NOW + 3)] == ["d1", "d2"]
    assert log.status().bytes == sum(place.files().values())
    assert len(place.files()) == 3


def test_oldest_files_are_removed_also_those_of_an_earlier_run(
    open_log: OpenLog, place: Location
) -> None:
    large = {"state": "".join(chr(33 + n * n % 90) for n in range(30_000))}
    first = open_log(part_rows=1)
    for number in range(3):
        first.put(decision(number, **large))
    first.close()
    (place / "notes.txt").write(b"mine")
    size = max(size for name, size in place.files().items() if name != "notes.txt")
    second = open_log(part_rows=1, most_bytes=max(1 << 16, 4 * size))
    for number in range(3, 40):
        second.put(decision(number, **large))
    assert second.flush()
    kept = [int(row.id[1:]) for row in rows(place)]
    assert kept == list(range(40))[-len(kept) :]
    assert 0 < len(kept) < 40
    assert second.status().bytes <= max(1 << 16, 4 * size)
    assert "notes.txt" in place.files()


def test_rows_wait_while_the_bucket_is_gone(
    open_log: OpenLog, place: Location, s3: ObjectStore
) -> None:
    log = open_log()
    log.put(decision(0))
    assert log.flush()
    s3.delete(f"s3://{place.path.partition('/')[0]}")
    log.put(decision(1))
    assert not log.flush()
    fault = log.status().fault or ""
    assert fault.startswith(f"cannot write {place}/")
    assert "NO_SUCH_BUCKET" in fault
    assert log.status().dropped == 0


def test_folder_of_the_log_is_a_path_or_a_url(s3: ObjectStore, tmp_path: Path) -> None:
    here = build_settings(LogSettings, {"folder": "logs"})
    assert here.folder == str(Path("logs").absolute())
    assert build_settings(LogSettings, {"folder": f"file://{tmp_path}"}).folder == str(tmp_path)
    here.check_folder()
    bucket = s3.bucket()
    build_settings(LogSettings, {"folder": f"{bucket}/log"}).check_folder()
    assert Location.of(bucket).files() == {}
    with pytest.raises(InputError, match="s3://no-such-bucket/log"):
        build_settings(LogSettings, {"folder": "s3://no-such-bucket/log"}).check_folder()


@pytest.mark.slow
def test_service_with_bundle_and_log_in_a_bucket(
    place: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3: ObjectStore
) -> None:
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path / "cache"))
    bundles = Location.of(f"{s3.bucket()}/policies")
    for name, extra in (("one", 0), ("two", 5)):
        local = toy.make_bundle(tmp_path / name, name=name, extra=extra)
        files = sorted((file.name for file in local.iterdir()), key=lambda n: n == "manifest.json")
        (bundles / name).upload(local, files)
    one = {"endpoint": toy.REFERENCE, "bundle": f"{bundles}/one", "deadline_ms": 5000}
    service = open_service({"toy": {**one, "log": {"folder": str(place)}}}, tmp_path)
    try:
        first = service.decide()
        assert (first["source"], first["policy"]["name"]) == ("policy", "one")
        promoted = service.post("promote", {"bundle": f"{bundles}/two", "to": "serving"})
        assert promoted.status == 200, promoted
        second = service.decide()
        assert second["policy"]["name"] == "two"
        missing = service.post("promote", {"bundle": f"{bundles}/none", "to": "serving"})
        assert missing.status == 422
        assert service.decide()["policy"]["name"] == "two"
    finally:
        service.close()
    assert [row.policy for row in rows(place)] == ["one", "two", "two"]
    assert not (tmp_path / "kept" / "log").exists()
