"""Where a cluster's dashboard is, whose API takes jobs, and the token it asks for."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

from loadmaster.envs.errors import InputError

AUTH_MODE, AUTH_TOKEN, AUTH_TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
API_SERVER, RAY_ADDRESS = "RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"
LOCAL = "http://127.0.0.1:8265"  # where `ray start` puts the dashboard
ANSWER_S = 5.0  # how long a machine may take to open a connection


def token_file() -> Path:
    """Where Ray looks for the token if no variable holds it."""
    return Path(os.environ.get(AUTH_TOKEN_PATH) or Path.home() / ".ray" / "auth_token")


def cluster_token() -> str | None:
    """The token of RAY_AUTH_TOKEN, or of the file that Ray would read; None: none is known."""
    if given := os.environ.get(AUTH_TOKEN):
        return given.strip()
    try:
        return token_file().read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        if AUTH_TOKEN_PATH in os.environ:
            raise InputError(f"{AUTH_TOKEN_PATH}={token_file()} does not exist") from None
        return None
    except (OSError, UnicodeDecodeError) as fault:
        raise InputError(f"cannot read the cluster's token in {token_file()}: {fault}") from None


def dashboard_address(given: str | None = None) -> str:
    """The one given; else as the environment says; else that of the Ray this process is in."""
    named = given or os.environ.get(API_SERVER)
    if named:
        return _checked(named, "--address" if given else API_SERVER)
    if (running := _of_the_running_ray()) is not None:
        return running
    if head := os.environ.get(RAY_ADDRESS, ""):
        if "://" in head:
            return _checked(head, RAY_ADDRESS)
        if head not in ("auto", "local"):
            return _told_by(head)
    return LOCAL


def _checked(address: str, origin: str) -> str:
    expected = "expected the dashboard's http://HOST:PORT"
    if "://" not in address:
        address = f"http://{address}"
    try:
        parts = urlsplit(address)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound or parts.query or parts.fragment or parts.username:
        raise InputError(f"{origin} {address!r}: {expected}")
    return address.rstrip("/")


def _of_the_running_ray() -> str | None:
    """Of the Ray that this process has joined; None where it has joined none."""
    ray = sys.modules.get("ray")  # a process that has not even loaded it has joined none
    if ray is None or not ray.is_initialized():
        return None
    from ray._private.services import get_webui_url_from_internal_kv

    found = get_webui_url_from_internal_kv()
    if not found:
        raise InputError(
            "the running Ray has no dashboard, so it takes no jobs; "
            "expected one started with include_dashboard=True"
        )
    return f"http://{found}"


def _told_by(head: str) -> str:
    """A head's own word where its dashboard is. Ray would ask a dead one for minutes."""
    host, _, port = head.rpartition(":")
    expected = f"expected HOST:PORT of a running head, or {API_SERVER}=http://HOST:PORT"
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
    except (OSError, ValueError, OverflowError) as fault:
        reason = getattr(fault, "strerror", None) or str(fault)
        raise InputError(
            f"{RAY_ADDRESS}={head}: no cluster answers ({reason}); {expected}"
        ) from None
    from ray.dashboard.utils import ray_address_to_api_server_url

    try:
        return str(ray_address_to_api_server_url(head))
    except Exception as fault:  # Ray's own kinds of it, without a common base
        reason = " ".join(str(fault).split())[:200]
        raise InputError(f"{RAY_ADDRESS}={head}: {reason}; {expected}") from None
