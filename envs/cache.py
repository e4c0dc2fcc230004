"""Where this project keeps what it can make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """LOADMASTER_CACHE, or what the system says is for caches, or ~/.cache."""
    root = os.environ.get("LOADMASTER_CACHE") or os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "loadmaster"
