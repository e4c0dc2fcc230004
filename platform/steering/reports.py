"""Reports of steps to the decision service, from a thread of their own.

The service shows the last step with the tenant, in its status and its console. A step never waits
for a report: only the latest of each application is kept, and a failed one is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from loadmaster.platform.steering.core import Mode, StepResult
from loadmaster.serving.client import Client, ServiceError
from loadmaster.serving.decisions.steering import LINE_MAX
from loadmaster.serving.decisions.tenant_names import tenant_of

PAUSE_S = 1.0  # between reports of one application
REPEAT_S = 30.0  # after which an unchanged result is reported again


class ServiceReports:
    """Sends the latest result of each application; a context that ends with a last round."""

    def __init__(
        self,
        client: Client,
        system: str,
        engine: str,
        mode: Mode,
        tenant: str | None,
        clock: Callable[[], float],
    ) -> None:
        self._client, self._system, self._engine = client, system, engine
        self._mode, self._tenant, self._clock = mode, tenant, clock
        self._pending: dict[str, StepResult] = {}
        self._sent: dict[str, tuple[tuple[str, str], float]] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="steering reports", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join()
        self.send()

    def record(self, result: StepResult) -> None:
        with self._lock:
            self._pending[result.application] = result

    def _run(self) -> None:
        while not self._stopped.wait(PAUSE_S):
            self.send()

    def send(self) -> None:
        """Send what has changed, or was not repeated for a while."""
        with self._lock:
            pending, self._pending = self._pending, {}
        for name, result in pending.items():
            line = result.line().removeprefix(f"{name} {result.result}: ")
            key = result.result, line[:LINE_MAX]
            before, sent_s = self._sent.get(name, (None, float("-inf")))
            now_s = self._clock()
            if key == before and now_s < sent_s + REPEAT_S:
                continue
            tenant = self._tenant or tenant_of(name)
            try:
                self._client.steering(self._system, self._engine, self._mode, *key, tenant=tenant)
            except ServiceError:
                return  # those of this round are lost; the steps tell that the service is silent
            self._sent[name] = key, now_s
