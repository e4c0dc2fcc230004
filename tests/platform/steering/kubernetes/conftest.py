"""Servers of the tests in this folder."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from loadmaster.platform.steering.kubernetes.access import Access
from loadmaster.platform.steering.kubernetes.client import KubernetesClient
from tests.platform.steering.kubernetes.api_server import DEADLINE_S, ApiServer, serving

Connect = Callable[[ApiServer], KubernetesClient]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Serve an API server; returns its client."""
    with ExitStack() as stack:

        def start(server: ApiServer) -> KubernetesClient:
            url = stack.enter_context(serving(server.handle))
            client = KubernetesClient(Access(url, "secret"), deadline_s=DEADLINE_S)
            stack.callback(client.close)
            return client

        yield start
