"""How long processes of a test were ready to run without a processor, as the kernel counts it.

On a busy machine a service is slow through no fault of its own. Waiting for a disk, a lock or its
own work is not counted; for the test process, every delay of its event loop is.
"""

import asyncio
import contextlib
import os
from bisect import bisect_right
from pathlib import Path

SAMPLE_S = 0.04
LATER_S = 2.0  # a wait is known once the thread has run again
STEAL = 8  # column of /proc/stat


class Starvation:
    """Waits of the threads of one process. `watch` must run meanwhile."""

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
        """Wait, between those times, of the thread that waited longest."""
        found: dict[str, float] = {}
        for number in range(max(1, bisect_right(self._times, began)), len(self._times)):
            sampled, now = self._times[number - 1], self._times[number]
            if sampled > ended + LATER_S:
                break
            before = self._samples[number - 1]
            for thread, ns in self._samples[number].items():
                waited_s = (ns - before.get(thread, ns)) / 1e9
                if waited_s > 0:  # within the sample, or a longer wait that ended in it
                    since = min(sampled, now - waited_s)
                    common_s = max(0.0, min(now, ended) - max(since, began))
                    share = common_s / (now - since)
                    found[thread] = found.get(thread, 0.0) + 1000 * waited_s * share
        return max(found.values(), default=0.0)

    def _waited(self) -> dict[str, int]:
        """By thread; empty if the process is gone or the kernel does not count."""
        found = {}
        for file in self._tasks.glob("*/schedstat"):
            with contextlib.suppress(OSError, IndexError):  # the thread has just ended
                found[file.parent.name] = int(file.read_text().split()[1])
        return found


class Steal(Starvation):
    """Time that the hypervisor took from each processor of this machine."""

    def __init__(self) -> None:
        super().__init__(0)
        self._tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")

    def _waited(self) -> dict[str, int]:
        """By processor."""
        rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        return {
            row[0]: self._tick_ns * int(row[STEAL])
            for row in rows
            if row[0].startswith("cpu") and row[0] != "cpu" and len(row) > STEAL
        }
