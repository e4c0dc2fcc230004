"""The engine Flink: the jobs of a cluster that are steered, by their names or all."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from loadmaster.envs.errors import InputError, counted
from loadmaster.platform.steering.core import Mode, SilentError
from loadmaster.platform.steering.flink.client import ApiError, FlinkClient, Json
from loadmaster.platform.steering.flink.job import FlinkJob
from loadmaster.platform.steering.flink.polling import Sleep
from loadmaster.platform.steering.flink.settings import FlinkSettings
from loadmaster.platform.steering.registry import EngineSpec

ENDPOINT = "loadmaster.serving.systems.sure.system:ENDPOINT"  # whose state the documents are

_log = logging.getLogger("loadmaster.steer")


class Jobs:
    """The jobs to steer, which keep their history from step to step."""

    def __init__(
        self,
        client: FlinkClient,
        settings: FlinkSettings,
        names: Sequence[str],
        clock: Callable[[], float] = time.time,
        sleep: Sleep = time.sleep,
    ) -> None:
        self._client, self._settings, self._names = client, settings, names
        self._clock, self._sleep = clock, sleep
        self._known: dict[str, FlinkJob] = {}

    def __call__(self) -> list[FlinkJob]:
        """Jobs that have not ended; a new one is polled once, so that rates are known."""
        try:
            running = self._client.jobs()
        except ApiError as fault:
            raise SilentError("engine", f"Flink: {fault.status}: {fault}") from None
        chosen = choose(running, self._names, self._client.url)
        known = {job: self._known.get(job) for job in chosen}
        found = {
            job: known[job]
            or FlinkJob(self._client, job, chosen[job], self._settings, self._clock, self._sleep)
            for job in chosen
        }
        self._known = found
        self._poll_new([one for one in found.values() if one.is_new])
        for one in found.values():
            one.prepare()
        return list(found.values())

    def _poll_new(self, jobs: Sequence[FlinkJob]) -> None:
        for one in jobs:
            one.prepare()
        for one in jobs:
            try:
                one.read()
            except SilentError as fault:  # reported by its step
                _log.debug("%s: %s", one.application, fault)
        if jobs:
            self._sleep(self._settings.first_poll_s)


def choose(running: Sequence[Json], names: Sequence[str], url: str) -> dict[str, str]:
    """Applications by job id: those of these names or ids, or all."""
    shared = Counter(job["name"] for job in running)
    shown = {
        job["jid"]: job["name"] if shared[job["name"]] == 1 else f"{job['name']} {job['jid'][:8]}"
        for job in running
    }
    if not names:
        if not shown:
            raise InputError(f"no job runs at {url}; expected at least one")
        return shown
    chosen: dict[str, str] = {}
    for name in names:
        found = [job["jid"] for job in running if name in (job["jid"], job["name"])]
        if not found:
            listed = ", ".join(sorted(shown.values())) or "none"
            raise InputError(f"unknown job {name!r}; expected one of those that run: {listed}")
        if len(found) > 1:
            ids = ", ".join(found)
            raise InputError(f"{counted(len(found), 'job')} have the name {name!r}; ids: {ids}")
        chosen[found[0]] = shown[found[0]]
    return chosen


@contextmanager
def connect(settings: FlinkSettings, names: Sequence[str], mode: Mode) -> Iterator[Jobs]:
    """Yield a function that lists the jobs to steer now; `names` are names or ids."""
    with closing(FlinkClient(settings.rest, settings.token_file, settings.deadline_s)) as client:
        yield Jobs(client, settings, names)


SPEC = EngineSpec(
    "flink",
    ENDPOINT,
    "Parallelism of the tasks of streaming jobs, by Flink's REST interface.",
    FlinkSettings,
    connect,
)
