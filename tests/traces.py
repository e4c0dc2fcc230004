"""Tests against published traces, which the project does not ship."""

import os

import pytest

needs_traces = pytest.mark.skipif(
    "LOADMASTER_DATA" not in os.environ, reason="LOADMASTER_DATA is not set: no traces to read"
)
