"""How a run or a sweep ends that could not go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from loadmaster.envs.errors import InputError
from loadmaster.platform.ray_output import RAY_LOG


class Folder(Protocol):
    """Of a run or a sweep."""

    @property
    def path(self) -> Path: ...

    def discard(self) -> None:
        """Take it back, as long as nothing is in it that somebody would miss."""


@contextmanager
def ending(folder: Folder, resumed: bool, tell_how_to_go_on: Callable[[], None]) -> Iterator[None]:
    """A new folder is taken back; of one that stays the user is told, and where Ray's words are."""
    try:
        yield
    except (InputError, KeyboardInterrupt) as end:
        if not resumed:
            folder.discard()
        if isinstance(end, KeyboardInterrupt) and folder.path.exists():
            tell_how_to_go_on()
        raise
    except Exception as fault:
        fault.add_note(f"What Ray printed is in {folder.path / RAY_LOG}")
        raise
