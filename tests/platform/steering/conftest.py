"""Which tests of real engines run: those that need much to be fetched only on request."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from tests.platform.steering.kubernetes.build import find_kubernetes
from tests.platform.steering.kubernetes.control_plane import (
    PROGRAMS,
    ControlPlane,
    control_plane_on,
)
from tests.platform.steering.kubernetes.real_workload import Shop, prepare

VARIABLE = "LOADMASTER_ENGINES"  # names, or "all"; `make test-engines` sets it
ON_REQUEST = {"flink", "kubernetes", "spark"}


def pytest_runtest_setup(item: pytest.Item) -> None:
    chosen = {one.strip() for one in os.environ.get(VARIABLE, "").split(",")}
    for marker in item.iter_markers("engine"):
        (name,) = marker.args
        if name in ON_REQUEST and not chosen & {"all", name}:
            pytest.skip(f"{VARIABLE} has no {name}; see `make test-engines`")


@pytest.fixture(scope="session")
def control_plane(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """One Kubernetes control plane for all tests of a process; its programs are built at first."""
    terminal: Any = request.config.pluginmanager.get_plugin("terminalreporter")
    try:
        programs = find_kubernetes(print if terminal is None else terminal.write_line)
    except InputError as fault:
        pytest.skip(str(fault))
    if missing := [name for name in PROGRAMS if not (programs / name).is_file()]:
        pytest.skip(f"{programs} has no {', '.join(missing)}")
    with control_plane_on(programs, tmp_path_factory.mktemp("kubernetes")) as plane:
        yield plane


@pytest.fixture(scope="session")
def mpa_plane(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with the manifests."""
    prepare(control_plane)
    return control_plane


@pytest.fixture
def shop(mpa_plane: ControlPlane, tmp_path: Path) -> Iterator[Shop]:
    """An application in the control plane, which is deleted at the end."""
    with ExitStack() as stack:
        yield Shop(mpa_plane, stack, tmp_path, stabilisationSeconds=0)
