"""Files of the control process in the folder of the service: lock, key, and assignment."""

import fcntl
import json
import logging
import os
import secrets
from pathlib import Path

from loadmaster.envs.errors import InputError
from loadmaster.models.files import atomic_write, private_opener
from loadmaster.models.manifest import read_bounded
from loadmaster.serving.decisions.request import to_json
from loadmaster.serving.policies.store import open_state_folder
from loadmaster.serving.replicas.handshake import KEY_BYTES
from loadmaster.serving.replicas.membership import Assignment, restore_assignment

log = logging.getLogger(__name__)

KEY_FILE, LOCK_FILE, MEMBERS_FILE = "service.key", "control.lock", "members.json"


def lock_folder(folder: Path) -> int | None:
    """A descriptor that holds the lock of the folder; None if another process holds it."""
    try:
        open_state_folder(folder)
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as fault:
        line = f"folder {folder}: {fault.strerror}; expected a writable one"
        raise InputError(line) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def in_use(folder: Path) -> InputError:
    return InputError(f"{folder} is in use by another service; expected another folder")


def load_key(folder: Path) -> bytes:
    """The key of the service, drawn at its first start."""
    file = folder / KEY_FILE
    if file.exists() and len(key := read_bounded(file, KEY_BYTES)) == KEY_BYTES:
        return key
    key = secrets.token_bytes(KEY_BYTES)
    with open(file, "wb", opener=private_opener) as opened:
        opened.write(key)
    return key


def load_assignment(folder: Path) -> Assignment:
    """The latest assignment, of a process before this one."""
    file = folder / MEMBERS_FILE
    if file.exists():
        try:
            return restore_assignment(json.loads(read_bounded(file, 1 << 20)))
        except (InputError, ValueError, TypeError, KeyError, RecursionError) as fault:
            log.warning("%s cannot be read (%s)", file, fault)
    return Assignment(0, [])


def save_assignment(folder: Path, assignment: Assignment) -> None:
    with atomic_write(folder / MEMBERS_FILE, sync=True, private=True) as opened:
        opened.write(to_json(assignment.record()))
