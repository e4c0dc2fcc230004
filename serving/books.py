"""A system's store behind a thread of its own: requests never wait for the disk.

A hundred kilobytes that are made durable take tens of milliseconds where the disk is busy, a
bundle that is copied takes longer, and meanwhile the event loop would answer nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from loadmaster.serving.store import Store, Version


class Books:
    """Everything is done in the order it was asked for. Only the event loop calls it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="books")
        self._under_trial = 0
        self.fault: str | None = None  # why the last record could not be written

    def remembered(self) -> dict[str, Any]:
        return self._store.remembered()

    def write(self, record: Mapping[str, Any]) -> None:
        """Begin to write it down; nobody may change it any more."""
        self._thread.submit(self._write, record)

    def _write(self, record: Mapping[str, Any]) -> None:
        try:
            self._store.remember(record)
        except OSError as fault:
            self.fault = fault.strerror or str(fault)
        else:
            self.fault = None

    async def written(self) -> None:
        """When all that was asked for is done."""
        await asyncio.get_running_loop().run_in_executor(self._thread, lambda: None)

    async def accept(
        self, folder: Path, now: str, try_out: Callable[[Version], Awaitable[None]]
    ) -> Version:
        """A copy of a bundle that passed `try_out`; an InputError says what is wrong with it."""
        loop = asyncio.get_running_loop()
        self._under_trial += 1
        try:
            version = await loop.run_in_executor(self._thread, self._store.accept, folder, now)
            await try_out(version)
        finally:
            self._under_trial -= 1
        return version

    def discard_all_but(self, kept: set[str]) -> None:
        """Later, where a bundle is on trial: it has no place among those kept yet."""
        if not self._under_trial:
            self._thread.submit(self._store.discard_all_but, kept)

    async def close(self) -> None:
        await self.written()
        self._thread.shutdown()
