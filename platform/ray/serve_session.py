"""Start, wait for and stop the decision service on Ray Serve."""

import math
import os
import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.platform.ray.cleanup import handled, ray_output_in
from loadmaster.platform.ray.head import SEVERAL_NODES
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


def own_head_cpus(settings: ServeSettings) -> int:
    """Logical CPUs of a Ray for the service alone: its own, and all cores for retraining."""
    return math.ceil(settings.reserved_cpus) + (os.cpu_count() or 1)


def set_variables() -> None:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def set_serve_env() -> None:
    """Set the variables of a Ray that this process starts for the service."""
    set_variables()
    # Jobs run arbitrary code, so submitting one needs the token.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if export_port() is None:
        # Bind Ray's ports to this machine only, as on macOS and Windows. With a metrics port for
        # Prometheus they stay reachable; the others need Ray's token.
        os.environ.setdefault(SEVERAL_NODES, "0")
    os.environ["PATH"] = venv_first(os.environ.get("PATH", ""))  # jobs use this environment's pip


def refuse_token_variable(environment: Mapping[str, str]) -> None:
    """Refuse tokens in a variable: processes of a running cluster do not see it."""
    from loadmaster.serving.http.auth import TOKENS

    if environment.get(TOKENS):
        raise InputError(f"{TOKENS} does not reach a running cluster; expected --tokens FILE")


def check_reachability(
    settings: ServeSettings, environment: Mapping[str, str], takes_over: bool = False
) -> None:
    """Refuse settings without tokens on a public address, and ports and folders that are taken.

    `takes_over`: port and folder may be those of the application that is replaced.
    """
    from loadmaster.serving.http.auth import TokenStore
    from loadmaster.serving.replicas.control_files import in_use, lock_folder

    settings.require_tokens(bool(TokenStore(settings.tokens, environment).principals))
    if takes_over:
        return
    if (lock := lock_folder(settings.folder)) is None:
        raise in_use(settings.folder)
    os.close(lock)
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
    """Run the service on the connected Ray, which runs no other application."""
    from ray import serve

    _start_serve()
    try:
        _deploy(arguments, APPLICATION, route_prefix="/")
        yield
    finally:
        with ray_output_in(Path(os.devnull)):  # hides messages about the stopped controller
            serve.shutdown()


@contextmanager
def serving_on_cluster(
    arguments: Mapping[str, Any], name: str = APPLICATION, replace: bool = False
) -> Iterator[None]:
    """Run the service as an application of a shared cluster, with its listener on this node.

    Removes the application at the end, unless another deployment has replaced it meanwhile. Serve
    is stopped only if it was started here and runs nothing else.
    """
    import ray
    from ray import serve
    from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

    was_running = _serve_is_running()
    known = serve.status().applications if was_running else {}
    if name in known and not replace:
        raise InputError(
            f"the cluster runs an application {name!r} already ({known[name].status.value}); "
            "expected another --name, or --replace"
        )
    # Folders, tokens and the address to listen on are those of this machine.
    own = ray.get_runtime_context().get_node_id()
    (here,) = (node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == own)
    arguments = {"resources": {f"node:{here}": 0.001}, **arguments}
    _start_serve()
    deployed = uuid.uuid4().bytes
    try:
        # Not reachable through Serve's proxies, whose paths belong to other applications.
        _internal_kv_put(_owner_key(name), deployed)
        _deploy(arguments, name, route_prefix=None)
        yield
    finally:
        with ray_output_in(Path(os.devnull)):
            found = serve.status().applications
            if name in found and _internal_kv_get(_owner_key(name)) == deployed:
                serve.delete(name)
                del found[name]
            if not was_running and not found:
                serve.shutdown()


def _owner_key(name: str) -> bytes:
    """Key in Ray's store of which command deployed an application last."""
    return f"loadmaster/serve/{name}".encode()


def _serve_is_running() -> bool:
    import ray
    from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

    try:
        ray.get_actor(SERVE_CONTROLLER_NAME, SERVE_NAMESPACE)
    except ValueError:
        return False
    return True


def _start_serve() -> None:
    """Start Serve without proxies, unless it runs."""
    import logging

    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    serve.start(proxy_location="Disabled")


def _deploy(arguments: Mapping[str, Any], name: str, route_prefix: str | None) -> None:
    from loadmaster.serving.app import build
    from ray import serve

    # Does not wait: Serve ignores Ctrl-C while it waits.
    serve.run_many(
        [serve.RunTarget(build(arguments), name=name, route_prefix=route_prefix)],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )


def base_url(settings: ServeSettings) -> str:
    """URL of the service from this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def wait_until_ready(
    settings: ServeSettings, stopped: threading.Event, name: str = APPLICATION
) -> bool:
    """Poll /readyz until every system is ready; False if `stopped` is set first."""
    began = time.monotonic()
    while not stopped.wait(POLL_S):
        try:
            with urllib.request.urlopen(f"{base_url(settings)}/readyz", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            _check_start(name)
            if time.monotonic() - began > READY_S:
                raise InputError(
                    f"the service was not ready within {READY_S:.0f} s; see Ray's logs"
                ) from None
    return False


def _check_start(name: str) -> None:
    """Raise an InputError if the deployment has failed."""
    from ray import serve
    from ray.serve.schema import ApplicationStatus

    status = serve.status().applications.get(name)
    if status is not None and status.status is ApplicationStatus.DEPLOY_FAILED:
        messages = [status.message, *(one.message for one in status.deployments.values())]
        faults = re.findall(r"^[\w.]*Error: (.*)$", "\n".join(messages), re.MULTILINE)
        raise InputError(f"the service did not start: {faults[-1] if faults else status.message}")


@contextmanager
def private_umask() -> Iterator[None]:
    """Deny other users access to all new files of the service, of its Ray and of its jobs."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def until_stopped() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set."""
    stopped = threading.Event()
    with handled(lambda *_: stopped.set(), signal.SIGINT, signal.SIGTERM):
        yield stopped
