"""Debian's packages, downloaded by apt-get and unpacked in a folder: nothing is installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from loadmaster.envs.errors import InputError

_OPTIONS = ("-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=30")


def unpack_packages(packages: Sequence[str], folder: Path, name: str) -> None:
    """Unpack packages into `folder`.

    Raises InputError, which names `name`, where they cannot be downloaded.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise InputError(f"{name} cannot be fetched: there is no apt-get here")
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        Path(scratch).chmod(0o777)  # as root apt-get downloads as the user _apt
        done = subprocess.run(
            ["apt-get", "--quiet", *_OPTIONS, "download", *packages],
            cwd=scratch, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            line = next((x for x in done.stderr.splitlines() if x.startswith("E:")), "no package")
            raise InputError(f"{name} cannot be fetched: {line}")
        for package in sorted(Path(scratch).glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(package), str(folder)], check=True)


def mirror() -> str:
    """URL of the archive that apt-get downloads from, with a slash at the end."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    if not found or not found[0].startswith(("http:", "https:")):
        raise InputError("apt-get has no archive that is read by HTTP")
    return found[0].rstrip("/") + "/"
