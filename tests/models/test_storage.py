"""Files at URLs, and bundles there: on S3 and on a filesystem of fsspec."""

import io
import itertools
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.fs
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.models.bundle import build_network, load_bundle, save_bundle
from loadmaster.models.manifest import MANIFEST_FILE, read_manifest
from loadmaster.models.remote_bundle import WEIGHTS, fetch_bundle
from loadmaster.models.storage import Location, Place, StorageError, is_remote, parse_place
from tests.object_store import ObjectStore, failing_location

Save = Callable[..., None]


@pytest.fixture(params=["s3", "s3 by query", "memory"])
def location(request: pytest.FixtureRequest, s3: ObjectStore) -> Location:
    """A folder that does not exist yet."""
    if request.param == "memory":
        return Location.of(f"memory://{uuid.uuid4()}/runs/one")
    query = s3.query if "query" in request.param else ""
    return Location.of(f"{s3.bucket()}/runs/one{query}")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "a").write_bytes(b"A")
    (tmp_path / "deep" / "er" / "b").write_bytes(b"B" * 100_000)
    return tmp_path


NAMES = ["a", "deep/er/b"]


@pytest.fixture
def save() -> Save:
    network = build_network("decima", {})

    def save(folder: Place, **change: Any) -> None:
        given = {"name": "one", "trained": {"iterations": 3}, **change}
        save_bundle(folder, system="decima", network={}, weights=network.state_dict(), **given)

    return save


def test_folder_is_uploaded_listed_downloaded_and_removed(location: Location, files: Path) -> None:
    assert (location.files(), location.entries()) == ({}, set())
    location.upload(files, NAMES)
    assert location.files() == {"a": 1, "deep/er/b": 100_000}
    assert location.entries() == {"a", "deep"}
    location.download(files / "copy", NAMES)
    assert [(files / "copy" / name).read_bytes() for name in NAMES] == [b"A", b"B" * 100_000]
    (location / "deep").remove()
    assert location.files() == {"a": 1}
    location.remove()
    location.remove()  # nothing is there any more
    assert location.files() == {}


def test_file_is_replaced_and_read_within_its_bound(location: Location) -> None:
    file = location / "sub" / "file"
    assert file.read(10) is None
    file.write(b"old")
    file.write(b"newer")
    assert file.read(5) == b"newer"
    assert (location / "sub").entries() == {"file"}  # nothing under a temporary name
    with pytest.raises(InputError, match="5 bytes"):
        file.read(4)


def test_file_that_is_being_replaced_is_read_whole(location: Location) -> None:
    """Each content is its length, often longer than the one before it."""
    file, over = location / "file", threading.Event()
    file.write(b"")
    assert file.read(0) == b""

    def write() -> None:
        for number in itertools.count(1):
            size = number if number % 2 else 1000 * number
            file.write(str(size).encode().ljust(size))
            if over.wait(0.002):
                return

    writer, seen = threading.Thread(target=write), set()
    writer.start()
    try:
        while len(seen) < 12:
            content = file.read(1 << 30) or b"0"
            assert len(content) == max(1, int(content))
            seen.add(content)
    finally:
        over.set()
        writer.join()


class FaultyReads(pyarrow.fs.FSSpecHandler):  # type: ignore[misc]
    """A filesystem whose reads of a content of five bytes fail, after `replace` was called."""

    def __init__(self, replace: Callable[[], None]) -> None:
        super().__init__(fsspec.filesystem("memory"))
        self._replace = replace

    def open_input_file(self, path: str) -> pa.NativeFile:
        content = self.fs.cat_file(path)
        replace = self._replace

        class Faulty(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                replace()
                raise OSError("the buffer is too short")

        kind = Faulty if len(content) == 5 else io.BytesIO
        return pa.PythonFile(kind(content), mode="r")


@pytest.mark.parametrize("replaced", [True, False])
def test_fault_counts_only_if_the_file_has_not_been_replaced(replaced: bool) -> None:
    path = f"/{uuid.uuid4()}/file"
    handler = FaultyReads(lambda: file.write(b"longer") if replaced else None)
    file = Location(f"memory:/{path}", pyarrow.fs.PyFileSystem(handler), path)
    file.write(b"short")
    if replaced:
        assert file.read(10) == b"longer"
    else:
        with pytest.raises(StorageError, match="the buffer is too short"):
            file.read(10)


def test_location_has_parents_children_and_a_name(location: Location) -> None:
    child = location / "x"
    assert (location.name, child.name, child.parent) == ("one", "x", location)
    assert Location.of(str(child)).path == child.path
    assert Location.of(str(location.parent / "one" / "x")) == child


def test_writing_is_probed_without_a_trace(location: Location, s3: ObjectStore) -> None:
    location.check_writable()
    assert location.files() == {}
    with pytest.raises(StorageError) as raised:
        Location.of("s3://no-such-bucket/log").check_writable()
    assert "s3://no-such-bucket/log" in str(raised.value)
    assert "NO_SUCH_BUCKET" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_failed_downloads_raise(location: Location, tmp_path: Path) -> None:
    for name in ("missing", "../outside"):
        with pytest.raises(StorageError):
            location.download(tmp_path, [name])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("runs/one", Path("runs/one")),
        ("/runs/a=b", Path("/runs/a=b")),
        ("file:///runs/a%20b", Path("/runs/a b")),
        ("file://localhost/runs", Path("/runs")),
    ],
)
def test_local_places_stay_paths(text: str, place: Path) -> None:
    assert parse_place(text) == place
    assert not is_remote(text)


@pytest.mark.parametrize(
    "url",
    [
        "file://elsewhere/runs",
        "s3://key:secret@bucket/run",
        "unknown-scheme://bucket/run",
        "s3://bucket/a b",
        "s3://",
    ],
)
def test_unusable_urls_are_refused_in_one_line(url: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_place(url)
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


def test_bundle_is_saved_and_fetched(
    location: Location, save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path / "cache"))
    save(tmp_path / "one")
    save(location)
    folder = fetch_bundle(location)
    assert folder.name == "one"
    assert read_manifest(folder) == read_manifest(tmp_path / "one")
    assert set(location.files()) == {path.name for path in folder.iterdir()}
    assert load_bundle(folder).weights.keys() == load_bundle(tmp_path / "one").weights.keys()
    with pytest.raises(InputError, match="exists already"):
        save(location)

    (folder / WEIGHTS).write_bytes(b"damaged")  # the cached copy is made again
    load_bundle(fetch_bundle(location))
    (location / WEIGHTS).remove()  # a whole cached copy needs no weights
    assert fetch_bundle(location) == folder


def test_bundle_without_manifest_is_none_and_is_overwritten(
    location: Location, save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path / "cache"))
    (location / WEIGHTS).write(b"of a writer that was killed")
    with pytest.raises(InputError, match="expected a policy bundle"):
        fetch_bundle(location)
    save(location)
    load_bundle(fetch_bundle(location))
    (location / WEIGHTS).write(b"changed later")
    save(location.parent / "two", trained={"iterations": 4})
    (location.parent / "two" / WEIGHTS).write(b"damaged")
    with pytest.raises(InputError, match=r"two/weights\.safetensors.* is damaged"):
        fetch_bundle(location.parent / "two")


@pytest.mark.parametrize("writes", range(4))
def test_bundle_is_whole_or_absent_after_any_number_of_writes(writes: int, save: Save) -> None:
    location, handler = failing_location()
    handler.left = writes
    if writes < 3:
        with pytest.raises(StorageError, match="the connection is lost"):
            save(location)
        assert MANIFEST_FILE not in location.entries()
    else:
        save(location)
        assert load_bundle(fetch_bundle(location)).name == "one"
