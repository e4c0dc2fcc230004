"""What the service writes can be read by its own user only."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadmaster.serving.monitoring.decision_log import DecisionLog
from loadmaster.serving.policies.store import Store
from tests.other_user import can_enter, modes, needs_root
from tests.serving.conftest import Start


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """The modes must not depend on the umask."""
    before = os.umask(0)
    yield
    os.umask(before)


def expected(folder: Path) -> dict[str, int]:
    return {name: 0o700 if (folder / name).is_dir() else 0o600 for name in modes(folder)}


def test_everything_the_service_writes_is_private(start: Start, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("admin 0123456789abcdef\n")
    headers = {"Authorization": "Bearer 0123456789abcdef"}
    here = start(tokens=tmp_path / "tokens")
    body = {"state": {"load": 42, "replicas": 3}}
    assert here.request("POST", "/v1/toy/decide", body, headers=headers).status == 200
    here.close()
    kept = tmp_path / "kept"
    assert modes(kept) == expected(kept)
    written = {name.partition("/")[0] for name in modes(kept)}
    assert written == {
        ".", "bundles", "log", "toy.json", "toy.sqlite", "known-callers.json",
        "control.lock", "members.json", "service.key",
    }  # fmt: skip
    assert {Path(name).suffix for name in modes(kept)} >= {".parquet", ".safetensors", ".json"}


@needs_root
def test_folder_of_an_earlier_version_is_closed(tmp_path: Path) -> None:
    base = Path("/tmp") / f"lmp-{os.getpid()}"  # others can enter its parents
    kept = base / "kept"
    try:
        (kept / "log" / "toy").mkdir(parents=True)
        (kept / "toy.json").write_text("{}")
        assert can_enter(kept)
        Store(kept, "toy")
        assert not can_enter(kept)
        assert can_enter(base)
    finally:
        shutil.rmtree(base)


def test_folder_shared_with_other_files_keeps_its_mode(tmp_path: Path) -> None:
    """As /tmp: closing it would lock out its other users."""
    shared = tmp_path / "shared"
    (shared / "bundles").mkdir(parents=True)
    (shared / "of-another-program").touch()
    Store(shared, "toy").save({"a": 1})
    DecisionLog(shared / "log" / "toy").flush()
    found = modes(shared)
    assert found.pop(".") == 0o777
    assert found.pop("of-another-program") == 0o666
    assert found.pop("bundles") == 0o777  # made by an earlier version, but what is inside is closed
    assert found == {name: mode for name, mode in expected(shared).items() if name in found}
    assert set(found) == {"bundles/toy", "log", "log/toy", "toy.json"}
