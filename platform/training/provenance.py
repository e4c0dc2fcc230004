"""Where a policy comes from: versions, command, revision and machine, for manifests."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any


def provenance() -> dict[str, Any]:
    return {
        "loadmaster": version("loadmaster"),
        "versions": {name: version(name) for name in ("ray", "torch", "numpy", "numba")}
        | {"python": platform.python_version()},
        "command": command(),
        "revision": revision(),
        "machine": machine(),
        "started": now(),
    }


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def command() -> str:
    return shlex.join(["loadmaster", *sys.argv[1:]])


def revision() -> str | None:
    """The checkout's git revision; None for an installed package."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def machine() -> dict[str, Any]:
    import torch

    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "system": platform.system(),
    }
