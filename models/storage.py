"""Folders and files at URLs: `s3://`, `gs://` and every other filesystem of pyarrow or fsspec.

A single file appears complete under its name or not at all. Of several that belong together, the
one that names the others is written last, and readers start with it. Local paths and `file://`
stay `Path`s, written by `files.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from loadmaster.envs.errors import InputError

OBJECT_STORES = ("s3", "gcs", "abfs")  # where an upload has no name before it is complete
THREADS = 8  # transfers at a time
PYARROW = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")  # schemes; fsspec has the others
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
CREDENTIALS = "credentials in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
DENIED = ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "EXPIRED_TOKEN")
AWS_FAULT = re.compile(r".*?AWS Error (\w+) during \w+ operation: (?:curlCode: \d+, )?(.*)")


class StorageError(InputError):
    """A URL that cannot be read or written; the message has the URL and the reason."""


def is_remote(text: str) -> bool:
    """Whether a text is the URL of something other than a local file."""
    return bool(SCHEME.match(text)) and not text.lower().startswith("file://")


def check_local(path: Path | None, option: str) -> None:
    """Refuse a URL where only a local folder will do; as a path it has lost a slash."""
    if path is not None and re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(path)):
        raise InputError(f"{option} {str(path)!r} is a URL; expected a local folder")


def parse_place(text: str) -> Place:
    """The local path of a path or `file://` URL, or the location of any other URL."""
    if is_remote(text):
        return Location.of(text)
    if not text.lower().startswith("file://"):
        return Path(text)
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise InputError(f"{text!r} names no local file; expected file:///PATH")
    return Path(unquote(parts.path))


@dataclass(frozen=True)
class Location:
    """A file or folder on a filesystem of pyarrow. Every fault of it is a StorageError."""

    url: str  # as given, without a slash at the end
    filesystem: Any = field(compare=False, repr=False)
    path: str  # on that filesystem

    @classmethod
    def of(cls, url: str) -> Location:
        """Parse a URL; credentials come from the environment."""
        import pyarrow.fs

        parts = urlsplit(url)
        if parts.password is not None:
            raise InputError(
                f"the URL of {parts.hostname!r} contains a password; expected {CREDENTIALS}"
            )
        tidy = parts._replace(path=parts.path.rstrip("/")).geturl()
        with _explained("use", url):
            if parts.scheme in PYARROW:
                # A small object takes one request, and a killed writer leaves no unfinished upload.
                once = "allow_delayed_open=true" if parts.scheme == "s3" else ""
                query = "&".join(filter(None, (parts.query, once)))
                uri = parts._replace(path=parts.path.rstrip("/"), query=query).geturl()
                filesystem, path = pyarrow.fs.FileSystem.from_uri(uri)
            else:
                filesystem, path = _from_fsspec(tidy)
        if not path.strip("/"):
            raise InputError(f"{url!r} names no folder; expected one, such as s3://BUCKET/FOLDER")
        return cls(tidy, filesystem, path.rstrip("/"))

    def __truediv__(self, name: str) -> Location:
        parts = urlsplit(self.url)
        url = parts._replace(path=f"{parts.path}/{name}").geturl()
        return Location(url, self.filesystem, f"{self.path}/{name}")

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> Location:
        parts = urlsplit(self.url)
        url = parts._replace(path=parts.path.rpartition("/")[0]).geturl()
        return Location(url, self.filesystem, self.path.rpartition("/")[0])

    def read(self, most: int) -> bytes | None:
        """The content of this file, at most `most` bytes; None if there is no such file.

        pyarrow fetches the size first and then as many bytes: of a longer file written meanwhile it
        would return the beginning, and an error longer than those bytes fails as if the file were
        faulty. So a file whose size or tag has changed is read again.
        """
        with _explained("read", self.url):
            while True:
                try:
                    with self.filesystem.open_input_file(self.path) as file:
                        version = file.size(), file.metadata()
                        data = self._read(file, version[0], most)
                    with self.filesystem.open_input_file(self.path) as again:
                        if (again.size(), again.metadata()) != version:
                            continue
                except FileNotFoundError:
                    return None
                if isinstance(data, OSError):
                    raise data
                return data

    def _read(self, file: Any, size: int, most: int) -> bytes | OSError:
        """The first `size` bytes in one request, or its fault."""
        if size > most:
            raise InputError(f"{self} has {size:,} bytes; expected at most {most:,}")
        try:
            data: bytes = file.read_at(size, 0)
        except FileNotFoundError:
            raise
        except OSError as fault:
            return fault
        return data

    def files(self) -> dict[str, int]:
        """Sizes of all files in this folder, by their names relative to it; {} if there is none."""
        return {info.path[len(self.path) + 1 :]: info.size for info in self._infos(deep=True)}

    def entries(self) -> set[str]:
        """Names of the files and folders directly in this one."""
        return {info.base_name for info in self._infos(deep=False)}

    def write(self, data: bytes) -> None:
        """Write this file; readers see the old one or the new one.

        A thread does it: closing a stream that Ctrl-C has cut off would publish half the data.
        """
        with ThreadPoolExecutor(1) as pool:
            pool.submit(self._write, data).result()

    def upload(self, folder: Path, names: Iterable[str]) -> None:
        """Write these files of a local folder, in no particular order."""
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda name: (self / name)._write((folder / name).read_bytes()), names))

    def download(self, target: Path, names: Iterable[str]) -> None:
        """Copy these files to a local folder; a file that is gone is a StorageError."""

        def copy(name: str) -> None:
            if ".." in name.split("/"):  # an object may have any name
                raise StorageError(f"{self / name} is no file of a folder")
            data = (self / name).read(most=1 << 40)
            if data is None:
                raise StorageError(f"{self / name} does not exist any more")
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(data)

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(copy, names))

    def remove(self) -> None:
        """Delete this file, or this folder with everything in it; neither needs to exist."""
        with _explained("delete", self.url):
            info = self.filesystem.get_file_info(self.path)
            if info.is_file:
                self.filesystem.delete_file(self.path)
            elif info.type.name == "Directory":
                self.filesystem.delete_dir(self.path)

    def check_writable(self) -> None:
        """Write and delete a file: a missing bucket or wrong credentials raise StorageError."""
        probe = self / ".loadmaster-probe"
        probe.write(b"probe")
        probe.remove()

    def _infos(self, deep: bool) -> list[Any]:
        import pyarrow.fs

        wanted = pyarrow.fs.FileSelector(self.path, allow_not_found=True, recursive=deep)
        with _explained("list", self.url):
            found = self.filesystem.get_file_info(wanted)
            return [info for info in found if info.is_file or not deep]

    def _write(self, data: bytes) -> None:
        with _explained("write", self.url):
            if self.filesystem.type_name in OBJECT_STORES:
                self._fill(self.path, data)
                return
            folder, _, name = self.path.rpartition("/")
            self.filesystem.create_dir(folder, recursive=True)
            scratch = f"{folder}/.{name}.partial"
            self._fill(scratch, data)
            self.filesystem.move(scratch, self.path)

    def _fill(self, path: str, data: bytes) -> None:
        stream = self.filesystem.open_output_stream(path)
        stream.write(data)
        stream.close()


Place = Path | Location


def _from_fsspec(url: str) -> tuple[Any, str]:
    """A filesystem that pyarrow does not have itself."""
    import fsspec
    import pyarrow.fs

    found, path = fsspec.core.url_to_fs(url)
    return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(found)), path


@contextmanager
def _explained(doing: str, url: str) -> Iterator[None]:
    """Turn a fault of a filesystem, which may be of any type, into one line."""
    try:
        yield
    except InputError:
        raise
    except Exception as fault:
        line = " ".join((str(fault) or type(fault).__name__).split())
        line = re.sub(r" \(Request ID: [^)]*\)", "", line)
        expected = ""
        if aws := AWS_FAULT.match(line):
            has_text = not aws[2].startswith("No response body")
            line = f"{aws[2]} ({aws[1]})" if has_text else aws[1]
            expected = f"; expected {CREDENTIALS}, of a user with access" * (aws[1] in DENIED)
        raise StorageError(f"cannot {doing} {url}: {line[:300]}{expected}") from fault
