"""Where a policy comes from is written down."""

from __future__ import annotations

import datetime
import json
import os
import sys
from pathlib import Path

import pytest
import ray
import torch

from loadmaster.platform.training import run_folder as origin


def test_versions_command_revision_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/loadmaster", "train", "decima", "--set", "a=b c"])
    found = origin.provenance()
    assert json.loads(json.dumps(found)) == found
    assert found["command"] == "loadmaster train decima --set 'a=b c'"
    assert found["versions"]["ray"] == ray.__version__
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["machine"]["cores"] == os.cpu_count()
    started = datetime.datetime.fromisoformat(found["started"])
    assert abs(datetime.datetime.now(datetime.UTC) - started) < datetime.timedelta(minutes=1)


def test_a_package_outside_a_checkout_has_no_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origin, "__file__", str(tmp_path / "provenance.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert origin.revision() is None
    monkeypatch.setenv("PATH", str(tmp_path))  # no git at all
    assert origin.revision() is None


def test_a_checkout_has_one(root: Path) -> None:
    if not (root / ".git").exists():
        pytest.skip("not a git checkout")
    assert len(origin.revision() or "") == 40
