"""A real control plane with GPU nodes, for the tests that request it."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.platform.steering.kubernetes.control_plane import ControlPlane
from tests.platform.steering.kubernetes_gpu.real_cluster import Cluster, prepare


@pytest.fixture(scope="session")
def gpu_plane(control_plane: ControlPlane) -> ControlPlane:
    prepare(control_plane)
    return control_plane


@pytest.fixture
def cluster(gpu_plane: ControlPlane, tmp_path: Path) -> Iterator[Cluster]:
    """An empty cluster; its pods are deleted at the end."""
    with ExitStack() as stack:
        cluster = Cluster(gpu_plane, stack, tmp_path)
        stack.callback(cluster.clear)
        yield cluster
