"""Commands run as another local user, to try what is closed to other users."""

import os
import subprocess
from pathlib import Path

import pytest

NOBODY = 65534

# The tests of permissions need a second user; without root there is none to switch to.
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def as_nobody(*command: str) -> int:
    """Exit code of a command run as the user `nobody`, with no group of ours."""
    done = subprocess.run(
        command,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        check=False,
    )
    return done.returncode


def can_enter(folder: Path) -> bool:
    """Whether `nobody` can list a folder, or reach anything inside it."""
    return as_nobody("ls", str(folder)) == 0 or as_nobody("ls", "-d", f"{folder}/.") == 0


def modes(folder: Path) -> dict[str, int]:
    """Permissions of a folder and of everything inside it, by path."""
    entries = (folder, *folder.rglob("*"))
    return {str(one.relative_to(folder)): one.lstat().st_mode & 0o777 for one in entries}
