"""The folder `platform/` must never hide the standard library's module of that name."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def where_platform_is() -> dict[str, object]:
    """Runs in other processes: import what the trap would kill, and tell what was found."""
    import importlib
    import platform
    import sys

    for name in ("numpy", "torch", "ray"):
        importlib.import_module(name)
    return {"file": platform.__file__, "version": platform.python_version(), "path": sys.path}


def assert_not_shadowed(found: dict[str, object], root: Path) -> None:
    path = found["path"]
    assert isinstance(path, list)
    library = str(Path(os.__file__).parent)
    assert path.index(str(root)) < path.index(library), "the root was not in front: no proof"
    assert not Path(str(found["file"])).is_relative_to(root / "platform")
    assert Path(str(found["file"])).parent == Path(library)
    assert found["version"] == ".".join(map(str, sys.version_info[:3]))


def test_platform_has_no_init(root: Path) -> None:
    assert not (root / "platform" / "__init__.py").exists()


@pytest.mark.slow
def test_driver_from_the_root(root: Path) -> None:
    script = inspect.getsource(where_platform_is) + (
        "import json\nprint(json.dumps(where_platform_is()))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert_not_shadowed(json.loads(answer.stdout), root)


@pytest.mark.slow
def test_worker_of_a_ray_job(root: Path, ray_session: None) -> None:
    import ray

    task = ray.remote(where_platform_is)
    assert_not_shadowed(ray.get(task.remote(), timeout=60), root)


def test_the_trap_is_real(tmp_path: Path) -> None:
    """With an `__init__.py` it snaps shut; if it ever stops doing so, the rule can go."""
    (tmp_path / "platform").mkdir()
    (tmp_path / "platform" / "__init__.py").touch()
    answer = subprocess.run(
        [sys.executable, "-c", "import platform; platform.python_version()"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "AttributeError" in answer.stderr
