"""The policy bundles that ship with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from loadmaster.models.manifest import FILE


def pretrained_folder() -> Path:
    """Where they lie."""
    return Path(str(files("loadmaster.models"))) / "pretrained"


def pretrained_policies() -> list[str]:
    """Their names."""
    folder = pretrained_folder()
    if not folder.is_dir():
        return []
    return sorted(b.name for b in folder.iterdir() if (b / FILE).is_file())
