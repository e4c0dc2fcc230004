"""Address and token of a cluster's dashboard, whose API accepts jobs."""

import os
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

from loadmaster.envs.errors import InputError

AUTH_MODE, AUTH_TOKEN, AUTH_TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
API_SERVER, RAY_ADDRESS = "RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"
DEFAULT_ADDRESS = "http://127.0.0.1:8265"  # default of `ray start`
ANSWER_S = 5.0  # timeout of a connection


def token_file() -> Path:
    """The file that Ray reads if RAY_AUTH_TOKEN is not set."""
    return Path(os.environ.get(AUTH_TOKEN_PATH) or Path.home() / ".ray" / "auth_token")


def cluster_token() -> str | None:
    """The token of RAY_AUTH_TOKEN or of Ray's token file; None if there is neither."""
    if given := os.environ.get(AUTH_TOKEN):
        return given.strip()
    try:
        return token_file().read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        if AUTH_TOKEN_PATH in os.environ:
            raise InputError(f"{AUTH_TOKEN_PATH}={token_file()} does not exist") from None
        return None
    except (OSError, UnicodeDecodeError) as fault:
        raise InputError(f"cannot read the token file {token_file()}: {fault}") from None


def dashboard_address(given: str | None = None) -> str:
    """The given address, else the environment's, else that of the Ray this process has joined."""
    named = given or os.environ.get(API_SERVER)
    if named:
        return _checked(named, "--address" if given else API_SERVER)
    if (running := running_ray_address()) is not None:
        return running
    if head := os.environ.get(RAY_ADDRESS, ""):
        if "://" in head:
            return _checked(head, RAY_ADDRESS)
        if head not in ("auto", "local"):
            return _address_from_head(head)
    return DEFAULT_ADDRESS


def _checked(address: str, origin: str) -> str:
    if "://" not in address:
        address = f"http://{address}"
    try:
        parts = urlsplit(address)
        is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or parts.query or parts.fragment or parts.username:
        raise InputError(f"{origin} {address!r}: expected the dashboard's http://HOST:PORT")
    return address.rstrip("/")


def running_ray_address() -> str | None:
    """Dashboard of the Ray that this process has joined; None if it has not joined any."""
    ray = sys.modules.get("ray")  # not imported: not joined
    if ray is None or not ray.is_initialized():
        return None
    from ray._private.services import get_webui_url_from_internal_kv

    found = get_webui_url_from_internal_kv()
    if not found:
        expected = "expected one started with include_dashboard=True"
        raise InputError(f"the running Ray has no dashboard, which accepts jobs; {expected}")
    return f"http://{found}"


def _address_from_head(head: str) -> str:
    """Query a Ray head for its dashboard; connect first, as Ray retries a dead one for minutes."""
    host, _, port = head.rpartition(":")
    expected = f"expected HOST:PORT of a running head, or {API_SERVER}=http://HOST:PORT"
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
    except (OSError, ValueError, OverflowError) as fault:
        reason = f"no cluster responds ({getattr(fault, 'strerror', None) or fault})"
        raise InputError(f"{RAY_ADDRESS}={head}: {reason}; {expected}") from None
    from ray.dashboard.utils import ray_address_to_api_server_url

    try:
        return str(ray_address_to_api_server_url(head))
    except Exception as fault:  # Ray's errors have no common base
        reason = " ".join(str(fault).split())[:200]
        raise InputError(f"{RAY_ADDRESS}={head}: {reason}; {expected}") from None
