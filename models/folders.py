"""Parents that were made for something that then could not be written."""

from __future__ import annotations

from pathlib import Path


def missing(folder: Path) -> list[Path]:
    """Those of a folder and its parents that do not exist, innermost first."""
    return [place for place in (folder, *folder.parents) if not place.exists()]


def remove_empty(folders: list[Path]) -> None:
    """Take them back, innermost first, as far as nobody else has put anything in."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return
