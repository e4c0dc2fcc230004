"""Where imported traces lie, and what they leave unsaid."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.errors import InputError


def data_path(settings: DagSchedulingSettings) -> Path:
    """The folder (or file) of traces that the user named; traces are never shipped."""
    named = settings.data or os.environ.get("LOADMASTER_DATA")
    if not named:
        raise InputError(
            f"workload {settings.workload!r} reads traces that are not shipped; expected their "
            "folder as --set data=FOLDER or in LOADMASTER_DATA"
        )
    path = Path(named).expanduser().resolve()
    if not path.exists():
        said = "data" if settings.data else "LOADMASTER_DATA"
        raise InputError(f"{said}: no file or folder {path}; expected the folder of the traces")
    return path


def stage_memory(job: str, stage: int) -> float:
    """The memory demand of a stage whose profile tells none: uniform in (0, 1], the same for ever.

    A hash rather than a generator: it does not depend on which other jobs were loaded, or when.
    """
    digest = hashlib.sha256(f"{job}/{stage}".encode()).digest()
    return (int.from_bytes(digest[:4], "big") + 1) / 2**32
