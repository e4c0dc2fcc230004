"""Start, wait for and stop the decision service on Ray Serve."""

import os
import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.platform.ray.cleanup import handled, ray_output_in
from loadmaster.serving.jobs.job import venv_first
from loadmaster.serving.monitoring.metrics import export_port
from loadmaster.serving.settings import ServeSettings

APPLICATION = "loadmaster"
READY_S = 600.0  # the first start compiles
POLL_S = 0.2

# Read by Serve at import, here and in its processes.
ENVIRONMENT = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",  # gRPC calls, one event loop per replica
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",  # the gateway has its own listener
    "RAY_worker_niceness": "0",  # 15 by default, below everything else on the machine
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "OMP_NUM_THREADS": "1",
}


def set_serve_env() -> None:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Jobs run arbitrary code, so submitting one needs the token.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if export_port() is None:
        # Bind Ray's ports to this machine only, as on macOS and Windows. With a metrics port for
        # Prometheus they stay reachable; the others need Ray's token.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ["PATH"] = venv_first(os.environ.get("PATH", ""))  # jobs use this environment's pip


def check_reachability(settings: ServeSettings, environment: Mapping[str, str]) -> None:
    """Refuse settings without tokens on a public address, and ports that are taken."""
    from loadmaster.serving.http.auth import TokenStore

    settings.require_tokens(bool(TokenStore(settings.tokens, environment).principals))
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as fault:
            raise InputError(
                f"cannot listen on {settings.host}:{settings.port}: {fault.strerror}; expected a "
                "free port (--port) of this machine"
            ) from None


@contextmanager
def serving(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Run the service on the connected Ray."""
    import logging

    from loadmaster.serving.app import build
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    serve.start(proxy_location="Disabled")
    try:
        # Does not wait: Serve ignores Ctrl-C while it waits.
        serve.run_many(
            [serve.RunTarget(build(arguments), name=APPLICATION)],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )
        yield
    finally:
        with ray_output_in(Path(os.devnull)):  # hides messages about the stopped controller
            serve.shutdown()


def base_url(settings: ServeSettings) -> str:
    """URL of the service from this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def wait_until_ready(settings: ServeSettings, stopped: threading.Event) -> bool:
    """Poll /readyz until every system is ready; False if `stopped` is set first."""
    began = time.monotonic()
    while not stopped.wait(POLL_S):
        try:
            with urllib.request.urlopen(f"{base_url(settings)}/readyz", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            _check_start()
            if time.monotonic() - began > READY_S:
                raise InputError(
                    f"the service was not ready within {READY_S:.0f} s; see Ray's logs"
                ) from None
    return False


def _check_start() -> None:
    """Raise an InputError if the deployment has failed."""
    from ray import serve
    from ray.serve.schema import ApplicationStatus

    status = serve.status().applications.get(APPLICATION)
    if status is not None and status.status is ApplicationStatus.DEPLOY_FAILED:
        messages = [status.message, *(one.message for one in status.deployments.values())]
        faults = re.findall(r"^[\w.]*Error: (.*)$", "\n".join(messages), re.MULTILINE)
        raise InputError(f"the service did not start: {faults[-1] if faults else status.message}")


def terminable() -> AbstractContextManager[None]:
    """Raise KeyboardInterrupt on SIGTERM, as on Ctrl-C."""
    return handled(signal.default_int_handler, signal.SIGTERM)


@contextmanager
def until_stopped() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set."""
    stopped = threading.Event()
    with handled(lambda *_: stopped.set(), signal.SIGINT, signal.SIGTERM):
        yield stopped
