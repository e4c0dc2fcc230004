"""A checkout's files, and the wheel that setuptools makes of them: no network, nothing littered."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadmaster.envs.errors import InputError

PROJECT = "pyproject.toml"
PATIENCE_S = 300.0
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def is_checkout(house: Path) -> bool:
    """Whether the folder is this project's source tree, and not where a wheel was unpacked."""
    return (house / PROJECT).is_file() and _project(house)["project"].get("name") == "loadmaster"


def sources(root: Path) -> dict[str, bytes]:
    """The packages' files and what setuptools asks for, by their path under the root.

    Of these, all that git does not ignore: new modules travel before they are committed. Results
    and the rest of the tree stay at home.
    """
    project = _project(root)
    folders = project["tool"]["setuptools"]["package-dir"].values()
    beside = [project["project"].get("readme"), *project["project"].get("license-files", ())]
    parts = [PROJECT, *(name for name in beside if name), *folders]
    names = _known_to_git(root, parts) or _walked(root, parts)
    return {name: (root / name).read_bytes() for name in names if (root / name).is_file()}


def build(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The contents of the wheel, built in a copy: setuptools leaves its traces where it works."""
    with tempfile.TemporaryDirectory(prefix="lm-wheel-") as scratch:
        copy, dist = Path(scratch) / "loadmaster", Path(scratch) / "dist"
        for name, content in files.items():
            file = copy / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        dist.mkdir()
        try:
            # -P: the copy, which holds platform/, stays off sys.path.
            done = subprocess.run(
                [sys.executable, "-P", "-c", BUILD, str(dist)],
                cwd=copy,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as fault:
            raise InputError(f"this checkout cannot be built as a wheel: {fault}") from None
        built = list(dist.glob("*.whl"))
        if done.returncode or len(built) != 1:
            raise InputError(_refusal(done.stderr))
        with zipfile.ZipFile(built[0]) as archive:
            return {name: archive.read(name) for name in archive.namelist()}


def _refusal(stderr: str) -> str:
    lines = stderr.strip().splitlines() or ["setuptools said nothing"]
    if "No module named 'setuptools'" in lines[-1]:
        return (
            "this checkout cannot be built as a wheel: setuptools is not installed; "
            "expected `pip install 'setuptools>=77'`"
        )
    return f"this checkout cannot be built as a wheel: {lines[-1]}"


def _project(root: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((root / PROJECT).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as fault:
        raise InputError(f"{root / PROJECT}: {fault}; expected TOML") from None


def _known_to_git(root: Path, parts: list[str]) -> list[str]:
    """Nothing where there is no git, or the tree is none of its own."""
    kinds = ("--cached", "--others", "--exclude-standard")
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z", *kinds, "--", *parts],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    names = sorted(filter(None, answer.stdout.split("\0")))
    return names if PROJECT in names else []


def _walked(root: Path, parts: list[str]) -> list[str]:
    found = [file for part in parts for file in (root / part, *(root / part).rglob("*"))]
    return sorted(
        str(file.relative_to(root))
        for file in found
        if file.is_file() and "__pycache__" not in file.parts
    )
