"""The loop of steering: steps of all applications at fixed times, once or until it is stopped."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol, runtime_checkable

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.core import SilentError, StepResult, invalid_result

Report = Callable[[StepResult], None]
# Those to steer now, of the kind that the steerer takes; raises SilentError.
Applications = Callable[[], Sequence[Any]]

ALL = "*"  # instead of an application, where none could be listed
KEPT_S = 600.0  # in metrics: applications without a step for so long are left out

_log = logging.getLogger("loadmaster.steer")


class Steps(Protocol):
    """A core.Steerer or a jobs.JobSteerer."""

    def step(self, engine: Any, now_s: float) -> StepResult: ...


@runtime_checkable
class Waking(Protocol):
    """Applications that are stepped before the next step is due, on news of the engine."""

    def wait(self, stopped: threading.Event, seconds: float) -> bool:
        """Wait for news, for `stopped`, or so long; whether `stopped` is set."""
        ...


class SteeringMetrics:
    """Counters and gauges of the steps, in Prometheus' text format.

    An application that had no step for `kept_s` is left out: it has ended.
    """

    def __init__(self, kept_s: float = KEPT_S) -> None:
        self._lock, self._kept_s = threading.Lock(), kept_s
        self._counts: dict[tuple[str, str], int] = {}  # by application and result
        self._last: dict[str, tuple[StepResult, float]] = {}
        self._good: dict[str, float] = {}  # time of the last step that was not degraded
        self._commands: dict[str, int] = {}  # carried out
        self._agreements: dict[str, tuple[float, int]] = {}  # sum and number, in shadow mode

    def record(self, result: StepResult, now_s: float) -> None:
        with self._lock:
            self._expire(now_s)
            if result.application != ALL:
                self._last.pop(ALL, None)  # applications are listed again
            key = result.application, result.result
            self._counts[key] = self._counts.get(key, 0) + 1
            self._last[result.application] = result, now_s
            if result.result != "dry-run" and result.commands:
                count = self._commands.get(result.application, 0)
                self._commands[result.application] = count + len(result.commands)
            if result.agreement is not None:
                total, count = self._agreements.get(result.application, (0.0, 0))
                self._agreements[result.application] = total + result.agreement, count + 1
            if not result.degraded:
                self._good[result.application] = now_s

    def _expire(self, now_s: float) -> None:
        for gone in [name for name, (_, at) in self._last.items() if now_s - at > self._kept_s]:
            for by_name in (self._last, self._good, self._commands, self._agreements):
                by_name.pop(gone, None)
            self._counts = {key: one for key, one in self._counts.items() if key[0] != gone}

    def text(self, now_s: float) -> str:
        with self._lock:
            self._expire(now_s)
            lines = ["# TYPE loadmaster_steer_steps_total counter"]
            for (application, result), count in self._counts.items():
                labels = _labels(application=application, result=result)
                lines.append(f"loadmaster_steer_steps_total{labels} {count}")
            lines.append("# TYPE loadmaster_steer_degraded gauge")
            for application, (last, _) in self._last.items():
                labels = _labels(application=application)
                lines.append(f"loadmaster_steer_degraded{labels} {int(last.degraded)}")
            lines.append("# TYPE loadmaster_steer_last_good_step_timestamp_seconds gauge")
            for application, at in self._good.items():
                labels = _labels(application=application)
                lines.append(f"loadmaster_steer_last_good_step_timestamp_seconds{labels} {at:.3f}")
            lines.append("# TYPE loadmaster_steer_commands_total counter")
            for application, count in self._commands.items():
                labels = _labels(application=application)
                lines.append(f"loadmaster_steer_commands_total{labels} {count}")
            lines.append("# TYPE loadmaster_steer_agreement summary")
            for application, (total, count) in self._agreements.items():
                labels = _labels(application=application)
                lines.append(f"loadmaster_steer_agreement_sum{labels} {total:g}")
                lines.append(f"loadmaster_steer_agreement_count{labels} {count}")
            for name in ("plan", "wanted"):
                lines.append(f"# TYPE loadmaster_steer_{name} gauge")
                for application, (last, _) in self._last.items():
                    for quantity, value in getattr(last, name).items():
                        labels = _labels(application=application, quantity=quantity)
                        lines.append(f"loadmaster_steer_{name}{labels} {value:g}")
        return "\n".join(lines) + "\n"


def _labels(**labels: str) -> str:
    quoted = (
        f'{name}="' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'
        for name, value in labels.items()
    )
    return "{" + ",".join(quoted) + "}"


@contextmanager
def metrics_server(metrics: SteeringMetrics, host: str, port: int) -> Iterator[int]:
    """Serve the metrics at /metrics while the block runs; yields the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.partition("?")[0] in ("/metrics", "/healthz")
            body = metrics.text(time.time()).encode() if found else b"expected /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http_server(Handler, host, port) as chosen:
        yield chosen


class LocalServer(ThreadingHTTPServer):
    """A server whose end does not wait for connections that clients keep open."""

    daemon_threads = True
    block_on_close = False


@contextmanager
def http_server(
    handler: type[BaseHTTPRequestHandler],
    host: str,
    port: int,
    kind: type[LocalServer] = LocalServer,
) -> Iterator[int]:
    """Serve in a thread while the block runs; yields the port."""
    try:
        server = kind((host, port), handler)
    except OSError as fault:
        raise InputError(
            f"cannot listen on {host}:{port}: {fault.strerror}; expected a free port of this "
            "machine"
        ) from None
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


def steer(
    applications: Applications,
    steerer: Steps,
    report: Report,
    every_s: float | None,
    strict: bool,
    stopped: threading.Event,
    clock: Callable[[], float] = time.time,
) -> bool:
    """Step all applications every `every_s` seconds, once if None; whether the last was degraded.

    Applications that are `Waking` are listed again as soon as there is news.
    With `strict` wrong input in the first round raises InputError, after that round; later it is
    reported, as is a fault of one application, which does not stop the others.
    """
    wait = applications.wait if isinstance(applications, Waking) else threading.Event.wait
    due, first, degraded = clock(), True, False
    while True:
        degraded = _round(applications, steerer, report, strict and first, clock)
        if every_s is None:
            return degraded
        first, now = False, clock()
        # A late round is not made up for, nor is one waited for whose clock was set back.
        due = min(max(due + every_s, now), now + every_s)
        if wait(stopped, due - now):
            return degraded


def _round(
    applications: Applications,
    steerer: Steps,
    report: Report,
    strict: bool,
    clock: Callable[[], float],
) -> bool:
    try:
        engines = applications()
    except SilentError as fault:
        report(StepResult(ALL, "silent", str(fault), silent=fault.part))
        return True
    except InputError as fault:
        if strict:
            raise
        report(invalid_result(ALL, fault))
        return True
    except Exception as fault:
        _log.exception("no list of applications")
        text = f"{type(fault).__name__}: {fault}"
        report(StepResult(ALL, "silent", text, silent="engine"))
        return True
    degraded = False
    first_fault: InputError | None = None
    for engine in engines:
        try:
            result = steerer.step(engine, clock())
        except InputError as fault:
            first_fault = first_fault or fault
            if strict:
                continue
            result = invalid_result(engine.application, fault)
        except Exception as fault:
            _log.exception("%s: a step failed", engine.application)
            text = f"{type(fault).__name__}: {fault}"
            result = StepResult(engine.application, "silent", text, silent="engine")
        report(result)
        degraded = degraded or result.degraded
    if strict and first_fault is not None:
        raise first_fault
    return degraded
