"""Which tests of real engines run: those that need much to be fetched only on request."""

import os

import pytest

VARIABLE = "LOADMASTER_ENGINES"  # names, or "all"; `make test-engines` sets it
ON_REQUEST = {"flink", "kubernetes", "spark"}


def pytest_runtest_setup(item: pytest.Item) -> None:
    chosen = {one.strip() for one in os.environ.get(VARIABLE, "").split(",")}
    for marker in item.iter_markers("engine"):
        (name,) = marker.args
        if name in ON_REQUEST and not chosen & {"all", name}:
            pytest.skip(f"{VARIABLE} has no {name}; see `make test-engines`")
