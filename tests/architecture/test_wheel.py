"""The wheel holds the four folders, whole, and nothing else."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.bundles import make_bundle

pytestmark = pytest.mark.slow

PACKAGES = ("envs", "models", "serving", "platform")


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked beside the copy of the tree that it was built from.

    A copy, because setuptools would pick up stale files from a build/ in the checkout.
    """
    copy = tmp_path_factory.mktemp("wheel") / "loadmaster"
    copy.mkdir()
    for package in (*PACKAGES, "tests"):
        shutil.copytree(
            root / package, copy / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / file, copy / file)
    make_bundle(copy / "models" / "pretrained" / "example")  # whether or not one ships today
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", "dist", "."], cwd=copy, check=True)
    (built,) = (copy / "dist").glob("*.whl")
    unpacked = copy / "unpacked"
    with zipfile.ZipFile(built) as archive:
        archive.extractall(unpacked)
    return unpacked


def test_holds_every_file_of_the_four_folders(wheel: Path) -> None:
    tree = wheel.parent
    expected = {
        str(Path("loadmaster") / file.relative_to(tree))
        for package in PACKAGES
        for file in (tree / package).rglob("*")
        if file.is_file() and file.name != "pyproject.toml"  # of loadmaster-client
    }
    found = {
        str(file.relative_to(wheel))
        for file in wheel.rglob("*")
        if file.is_file() and ".dist-info" not in file.parts[len(wheel.parts)]
    }
    assert found - expected == set()
    assert expected - found == set(), "add to packages or package-data in pyproject.toml"


def test_unpacked_it_runs(wheel: Path) -> None:
    """Also `loadmaster.platform`, which has no `__init__.py`; away from the checkout."""
    script = (
        "import json, loadmaster.platform.cli.list as found\n"
        "print(json.dumps([found.__file__, found.listing()]))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script],
        cwd=wheel,
        env={**os.environ, "PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
        check=True,
    )
    file, listing = json.loads(answer.stdout)
    assert Path(file).is_relative_to(wheel)
    names = [entry["name"] for entry in listing["environments"]]
    assert names == ["dag_scheduling", "gpu_scheduling", "pod_scaling", "stream_scaling"]
    assert "example" in listing["pretrained"]


def test_it_carries_licence_and_command(wheel: Path) -> None:
    (info,) = wheel.glob("*.dist-info")
    assert "Apache License" in (info / "licenses" / "LICENSE").read_text()
    assert (
        "loadmaster = loadmaster.platform.cli.main:main" in (info / "entry_points.txt").read_text()
    )
