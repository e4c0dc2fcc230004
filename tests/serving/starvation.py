"""CPU starvation: how long a process was ready to run without a processor, as the kernel counts it.

On a busy machine a service is slow through no fault of its own. Waiting for a disk, a lock or its
own work is not counted; for the test process, every delay of its event loop is.
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left, bisect_right
from pathlib import Path

SAMPLE_S = 0.02


class Starvation:
    """Samples of one process. `watch` must run meanwhile."""

    def __init__(self, pid: int) -> None:
        self._tasks = Path(f"/proc/{pid}/task")
        self._is_self = pid == os.getpid()
        self._delay_ns = 0
        self._times: list[float] = []
        self._samples: list[dict[str, int]] = []  # by thread: ns waited so far

    async def watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            self.sample(now)
            await asyncio.sleep(SAMPLE_S)
            self._delay_ns += int(1e9 * max(0.0, loop.time() - now - SAMPLE_S))

    def sample(self, now: float) -> None:
        self._times.append(now)
        self._samples.append(self._waited() | ({"loop": self._delay_ns} if self._is_self else {}))

    def ms(self, began: float, ended: float) -> float:
        """Starvation of the thread that waited longest, known only once it has run again."""
        first = max(0, bisect_right(self._times, began) - 1)
        last = min(len(self._times) - 1, bisect_left(self._times, ended))
        before, after = self._samples[first], self._samples[last]
        return max((ns - before.get(name, 0) for name, ns in after.items()), default=0) / 1e6

    def _waited(self) -> dict[str, int]:
        """By thread; empty if the process is gone or the kernel does not count."""
        if not self._tasks.is_dir():
            return {}
        found = {}
        for name in os.listdir(self._tasks):
            try:
                found[name] = int((self._tasks / name / "schedstat").read_text().split()[1])
            except (OSError, IndexError):  # the thread has ended, or is not counted
                continue
        return found
