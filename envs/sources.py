"""Where the traces lie that a workload imports."""

from __future__ import annotations

import os
from pathlib import Path

from loadmaster.envs.errors import InputError


def trace_path(workload: str, data: Path | None) -> Path:
    """The folder (or file) of traces that the user named; traces are never shipped."""
    named = data or os.environ.get("LOADMASTER_DATA")
    if not named:
        raise InputError(
            f"workload {workload!r} reads traces that are not shipped; expected their "
            "folder as --set data=FOLDER or in LOADMASTER_DATA"
        )
    path = Path(named).expanduser().resolve()
    if not path.exists():
        said = "data" if data else "LOADMASTER_DATA"
        raise InputError(f"{said}: no file or folder {path}; expected the folder of the traces")
    return path
