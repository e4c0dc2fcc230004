"""How long a process was ready to run and was not given a processor, as the kernel counts it.

On a machine that is busy with other things a service is slow, and that says nothing about it.
What it waits for by itself (a disk, a lock, its own work) is not counted here; of the process that
asks, whatever kept its loop from turning is.
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left, bisect_right
from pathlib import Path

LOOK_S = 0.02


class Starvation:
    """Of a process, over time. `watch` must run meanwhile."""

    def __init__(self, pid: int) -> None:
        self._tasks = Path(f"/proc/{pid}/task")
        self._asks = pid == os.getpid()
        self._held_ns = 0
        self._times: list[float] = []
        self._looks: list[dict[str, int]] = []  # by thread: ns waited so far

    async def watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            self.look(now)
            await asyncio.sleep(LOOK_S)
            self._held_ns += int(1e9 * max(0.0, loop.time() - now - LOOK_S))

    def look(self, now: float) -> None:
        self._times.append(now)
        self._looks.append(self._waited() | ({"loop": self._held_ns} if self._asks else {}))

    def ms(self, began: float, ended: float) -> float:
        """Of the thread that waited longest; it is known only once that has run again."""
        first = max(0, bisect_right(self._times, began) - 1)
        last = min(len(self._times) - 1, bisect_left(self._times, ended))
        before, after = self._looks[first], self._looks[last]
        return max((ns - before.get(name, 0) for name, ns in after.items()), default=0) / 1e6

    def _waited(self) -> dict[str, int]:
        """Nothing where the process is gone, or the kernel does not count: then nothing is taken
        off what a request took."""
        if not self._tasks.is_dir():
            return {}
        found = {}
        for name in os.listdir(self._tasks):
            try:
                found[name] = int((self._tasks / name / "schedstat").read_text().split()[1])
            except (OSError, IndexError):  # that thread has ended, or is not counted
                continue
        return found
