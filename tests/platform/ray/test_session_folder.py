"""Folders of Ray: closed to other users, short enough for sockets, deleted when left over."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray._common.utils import try_to_create_directory

from loadmaster.envs.errors import InputError
from loadmaster.platform.ray import session_folder as module
from loadmaster.platform.ray.session_folder import delete_left_over, session_folder
from tests.other_user import NOBODY, as_nobody, can_enter, needs_root

OWNER = """
import sys, tempfile, time
from loadmaster.platform.ray.session_folder import session_folder
tempfile.tempdir = sys.argv[1]
with session_folder() as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder as /tmp: every user may write to it."""
    folder = Path(tempfile.mkdtemp(prefix="lmt-", dir="/tmp"))
    folder.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def owner_of(base: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that owns a folder, and the folder."""
    command = [sys.executable, "-c", OWNER, str(base)]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    return owner, Path(owner.stdout.readline().strip()).parent


@needs_root
def test_other_users_cannot_touch_sockets_that_ray_opens_to_all(base: Path) -> None:
    with session_folder() as folder:
        sockets = folder / "session" / "sockets"
        for place in (folder, folder / "session", sockets):
            try_to_create_directory(str(place))  # as Ray makes them
        (sockets / "raylet").touch()
        assert sockets.stat().st_mode & 0o777 == 0o777
        assert can_enter(base)
        assert not can_enter(folder)
        assert as_nobody("mv", f"{sockets}/raylet", f"{sockets}/aside") != 0
        assert (sockets / "raylet").exists()
        assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert list(base.iterdir()) == []


def test_folders_of_killed_processes_are_deleted_at_the_next_start(base: Path) -> None:
    (killed, left), (running, used) = owner_of(base), owner_of(base)
    try:
        killed.send_signal(signal.SIGKILL)
        killed.wait(10)
        assert left.is_dir()
        with session_folder() as folder:
            assert sorted(base.iterdir()) == sorted([used, folder.parent])
    finally:
        for process in (killed, running):
            process.kill()
            process.communicate()
    delete_left_over(base)
    assert list(base.iterdir()) == []


def test_folders_of_others_are_left_alone(base: Path) -> None:
    names = ("lm-ray-without-lock", "lm-ray-of-nobody", "another-prefix", "target")
    unlocked, foreign, other, target = (base / name for name in names)
    for folder in (unlocked, foreign, other, target):
        (folder / module.RAY).mkdir(parents=True)
        if folder != unlocked:
            (folder / module.LOCK).touch()
    (base / "lm-ray-link").symlink_to(target)
    (base / "lm-ray-linked-lock").mkdir()
    (base / "lm-ray-linked-lock" / module.LOCK).symlink_to(target / module.LOCK)
    if os.geteuid() == 0:
        os.chown(foreign, NOBODY, NOBODY)
    else:
        shutil.rmtree(foreign)
    before = sorted(base.rglob("*"))
    delete_left_over(base)
    assert sorted(base.rglob("*")) == before


def test_folder_that_is_still_written_to_stays_until_later(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, session_folder() as folder:
        patch.setattr(module.shutil, "rmtree", lambda *_, **__: None)
    assert (folder.parent / module.LOCK).exists()
    delete_left_over(base)
    assert list(base.iterdir()) == []


def test_paths_of_sockets_are_short_enough(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = base / ("x" * 40)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with session_folder() as folder:
        assert folder.is_relative_to("/tmp/")
        assert not folder.is_relative_to(deep)
        socket_path = folder / module.SESSION / "sockets" / "plasma_store"
        assert len(str(socket_path)) <= module.SOCKET_BYTES
    monkeypatch.setattr(module, "SOCKET_BYTES", 20)
    with pytest.raises(InputError, match="expected a path of at most"), session_folder():
        pass
