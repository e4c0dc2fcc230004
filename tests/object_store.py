"""An S3 server on this machine for tests: moto's, with buckets that can vanish."""

import logging
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import fsspec
import pyarrow.fs
import pytest

from loadmaster.models.storage import Location

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class ObjectStore:
    """Buckets of one server."""

    def __init__(self, host: str, port: int) -> None:
        self.address = f"{host}:{port}"
        self._numbers = count()

    @property
    def query(self) -> str:
        """Query of a URL that needs no AWS_ENDPOINT_URL."""
        return f"?endpoint_override={self.address}&scheme=http"

    def bucket(self) -> str:
        """URL of a new bucket."""
        name = f"bucket-{next(self._numbers)}"
        self._request("PUT", name)
        return f"s3://{name}"

    def delete(self, bucket: str) -> None:
        """Delete a bucket with everything in it, also one that is being written to."""
        name = bucket.removeprefix("s3://")
        for _ in range(100):
            for key in Location.of(bucket).entries():
                (Location.of(bucket) / key).remove()
            try:
                self._request("DELETE", name)
            except urllib.error.HTTPError:
                time.sleep(0.01)
            else:
                return
        raise AssertionError(f"{bucket} is never empty")

    @contextmanager
    def credentials_checked(self) -> Iterator[None]:
        """Refuse every request: the keys of CREDENTIALS belong to no user of the server."""
        self._request("POST", "moto-api/reset-auth", b"0")
        try:
            yield
        finally:
            self._request("POST", "moto-api/reset-auth", b"inf")

    def _request(self, method: str, name: str, data: bytes | None = None) -> None:
        headers = {} if data is None else {"Content-Type": "text/plain"}
        url = f"http://{self.address}/{name}"
        request = urllib.request.Request(url, data, headers, method=method)
        urllib.request.urlopen(request, timeout=10).close()


class FailingHandler(pyarrow.fs.FSSpecHandler):  # type: ignore[misc]
    """A filesystem that stops working after a number of changes."""

    left = 1 << 30

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError("the connection is lost")

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self._count()
        return super().open_output_stream(path, metadata)

    def delete_dir(self, path: str) -> None:
        self._count()
        super().delete_dir(path)


def failing_location() -> tuple[Location, FailingHandler]:
    """A folder that does not exist yet, and its filesystem, which works until `left` is set."""
    handler = FailingHandler(fsspec.filesystem("memory"))
    path = f"/{uuid.uuid4()}/one"
    return Location(f"memory:/{path}", pyarrow.fs.PyFileSystem(handler), path), handler


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Start a server and set the standard variables that name it."""
    from moto.server import ThreadedMotoServer  # late: all tests import this module

    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # it logs every request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        yield ObjectStore(host, port)
    server.stop()
