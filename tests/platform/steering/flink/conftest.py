from collections.abc import Iterator

import pytest

from tests.platform.steering.flink.rest_server import FlinkServer, serving


@pytest.fixture
def flink() -> FlinkServer:
    return FlinkServer()


@pytest.fixture
def url(flink: FlinkServer) -> Iterator[str]:
    with serving(flink) as url:
        yield url
