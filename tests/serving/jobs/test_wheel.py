"""The wheel for a cluster: complete, without requirements, cached; and its errors."""

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename

from loadmaster.envs.errors import InputError
from loadmaster.serving.jobs import wheel as module
from loadmaster.serving.jobs.wheel import metadata_name, wheel, without_requirements

Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.slow
PACKAGES = ("envs/", "models/", "serving/", "platform/")
PROJECT = """
[project]
name = "loadmaster"
version = "7.0"
readme = "README.md"
[tool.setuptools]
packages = ["loadmaster.envs", "loadmaster.platform"]
package-dir = {"loadmaster.envs" = "envs", "loadmaster.platform" = "platform"}
"""


@pytest.fixture(scope="module")
def shipped(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return wheel(root, tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def target(shipped: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip has installed it, as Ray's agent does, without an index."""
    folder = tmp_path_factory.mktemp("node") / "py_modules"
    pip = [sys.executable, "-P", "-m", "pip", "install", "--quiet", "--no-index"]
    subprocess.run([*pip, str(shipped), f"--target={folder}"], check=True, cwd=folder.parent)
    return folder


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_wheel_has_every_source_file_and_no_other(shipped: Path, root: Path) -> None:
    found = {name for name in contents(shipped) if ".dist-info/" not in name}
    sources = {name for name in module.sources(root) if name.startswith(PACKAGES)}
    sources.remove("serving/client/pyproject.toml")  # of loadmaster-client
    assert found == {f"loadmaster/{name}" for name in sources}
    assert any(name.endswith("pretrained/decima-stream/weights.safetensors") for name in found)
    assert "loadmaster/platform/__init__.py" not in found


def test_wheel_name_and_record_have_digests(shipped: Path) -> None:
    """Ray identifies wheels by name, and pip must be able to parse it."""
    name, version, build, _ = parse_wheel_filename(shipped.name)
    assert (name, str(version)) == ("loadmaster", "0.1.0")
    assert len(str(build[1])) > 12
    files = contents(shipped)
    record = metadata_name(files).replace("METADATA", "RECORD")
    lines = {f"{record},,"}
    recorded = files.pop(record).decode().splitlines()
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        lines.add(f"{name},sha256={digest},{len(content)}")
    assert set(recorded) == lines


def test_requirements_move_to_an_extra_with_their_markers() -> None:
    """So pip installs the wheel without an index, as the fixture `target` does."""
    name = "loadmaster-1.dist-info/METADATA"
    text = 'Provides-Extra: dev\nRequires-Dist: torch\nRequires-Dist: x; extra == "dev"\n'
    text += 'Requires-Dist: uvloop>=1; sys_platform == "linux"\n\nAbout é.\n'
    once = without_requirements({name: text.encode()})
    assert once[name].decode() == (
        'Provides-Extra: cluster\nRequires-Dist: torch; extra == "cluster"\n'
        'Requires-Dist: uvloop>=1; sys_platform == "linux" and extra == "cluster"\n\nAbout é.\n'
    )
    assert without_requirements(once) == once


def test_installed_wheel_is_packed_again(shipped: Path, target: Path, tmp_path: Path) -> None:
    again = wheel(target / "loadmaster", tmp_path)
    assert contents(again) == contents(shipped)
    assert wheel(target / "loadmaster", tmp_path) == again
    assert [file.name for file in tmp_path.iterdir()] == [again.name]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small checkout."""
    root = tmp_path / "checkout"
    for name, text in {
        "pyproject.toml": PROJECT,
        "README.md": "A project.",
        "envs/__init__.py": "",
        "platform/main.py": "print(1)",
        "platform/__pycache__/main.pyc": "stale",
        "runs/one/metrics.csv": "1,2",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_changed_source_gives_another_name(tree: Path, tmp_path: Path) -> None:
    first = wheel(tree, tmp_path / "cache")
    assert first.name.startswith("loadmaster-7.0-0_")
    (tree / "runs" / "two").mkdir()
    assert wheel(tree, tmp_path / "cache") == first
    before = set(tree.iterdir())
    (tree / "platform" / "main.py").write_text("print(2)")
    second = wheel(tree, tmp_path / "cache")
    assert second != first
    assert contents(second)["loadmaster/platform/main.py"] == b"print(2)"
    assert set(tree.iterdir()) == before  # it is built in a copy


def test_untracked_modules_are_included_and_ignored_files_are_not(tree: Path) -> None:
    (tree / ".gitignore").write_text("__pycache__/\n*.secret\n")
    for command in (["init", "--quiet"], ["add", "envs", "pyproject.toml", "README.md"]):
        subprocess.run(["git", "-C", tree, *command], check=True)
    (tree / "platform" / "keys.secret").write_text("no")
    (tree / "envs" / "new.py").write_text("")
    packed = {"pyproject.toml", "README.md", "envs/__init__.py", "envs/new.py", "platform/main.py"}
    assert set(module.sources(tree)) == packed
    (tree / "envs" / "__init__.py").unlink()  # git still lists it
    assert "envs/__init__.py" not in module.sources(tree)


def test_old_wheels_are_deleted(tree: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(module, "KEPT", 2)
    monkeypatch.setattr(module, "build", lambda files: built)
    built = {"loadmaster-7.0.dist-info/METADATA": b"Name: loadmaster\nVersion: 7.0\n\n"}
    cache = tmp_path / "cache"
    made = []
    for text in "abc":
        (tree / "platform" / "main.py").write_text(text)
        made.append(wheel(tree, cache))
        os.utime(made[-1], (len(made), len(made)))
    assert set(cache.iterdir()) == set(made[1:])
    with pytest.raises(InputError, match="LOADMASTER_CACHE"):
        wheel(tree, made[-1] / "in a file")


@pytest.mark.parametrize(
    ("program", "part"),
    [
        ("import setuptools_that_is_not_there", "setuptools_that_is_not_there"),
        ("raise ModuleNotFoundError(\"No module named 'setuptools'\")", "pip install"),
        ("pass", "no output"),
    ],
)
def test_build_error_is_shown(program: str, part: str, tree: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(module, "BUILD", program)
    with pytest.raises(InputError, match=part):
        module.build(module.sources(tree))


def test_unusable_folders_are_refused(tree: Path, target: Path, tmp_path: Path) -> None:
    (tree / "pyproject.toml").write_text("[project")
    with pytest.raises(InputError, match="TOML"):
        module.is_checkout(tree)
    with pytest.raises(InputError, match="no installed package"):
        module.installed_files(tmp_path / "loadmaster")
    with pytest.raises(InputError, match="metadata"):
        metadata_name(["loadmaster/envs/__init__.py"])
    file = target / "loadmaster" / "envs" / "registry.py"
    hidden = file.rename(target / "hidden")
    with pytest.raises(InputError, match=r"registry\.py"):
        module.installed_files(target / "loadmaster")
    hidden.rename(file)
