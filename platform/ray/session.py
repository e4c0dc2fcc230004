"""Connections to Ray: a local one that ends with the command, or a running cluster."""

import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from loadmaster.envs.errors import InputError
from loadmaster.platform.ray.cleanup import keep_sigterm, reraise_sigint
from loadmaster.platform.ray.head import AGENT_START, SLOW, TRIES, own_head
from loadmaster.platform.ray.session_folder import session_folder
from loadmaster.serving.jobs import access
from loadmaster.serving.monitoring.metrics import export_port

OF_A_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set by Ray in the processes of a job
INIT_S = 5.0  # for `ray.init`, which ends in a segmentation fault where Ctrl-C cuts it off
LEAST_IMPORTANT = 19  # niceness


def in_a_job() -> bool:
    """Whether this process is a job on a cluster, as `loadmaster submit` starts it."""
    return OF_A_JOB in os.environ


def lower_priority() -> None:
    """Set the lowest CPU priority; workers on Ray get the same (`_joined`)."""
    os.nice(LEAST_IMPORTANT)


def cluster_address(given: str | None) -> str | None:
    """The given cluster, or the one this job runs on; None: start a local Ray."""
    if given is None and in_a_job():
        return os.environ.get(access.RAY_ADDRESS)
    return given


def set_ray_env(address: str | None) -> None:
    """Set variables that torch and Ray read at import only.

    Waiting torch threads would spin on cores that rollout workers need: updates took twenty times
    as long on two busy cores. A cluster started by `ray start` requires the token in the home
    folder if there is one, but a client that joins by host and port does not send it by itself.
    """
    for name, value in {"OMP_WAIT_POLICY": "PASSIVE", **AGENT_START}.items():
        os.environ.setdefault(name, value)
    given = access.AUTH_TOKEN in os.environ or access.AUTH_TOKEN_PATH in os.environ
    if cluster_address(address) is not None and (given or access.token_file().exists()):
        os.environ.setdefault(access.AUTH_MODE, "token")


@contextmanager
def ray_session(
    address: str | None = None,
    cpus: int | None = None,
    dashboard: bool = False,
    env: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Connect to Ray; an existing connection is used and left open.

    With `dashboard`, which only this machine can reach, jobs can be submitted and metrics are
    exported on the port that the environment names. `env` are variables of the workers on a
    running cluster; those of a new Ray have the variables of this process.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    address = cluster_address(address)
    if address is not None:
        with _joined(address, env):
            yield
        return
    cpus = max(cpus or 0, os.cpu_count() or 1)
    with session_folder() as folder, own_token():
        if dashboard:
            with own_head(folder, cpus, export_port()) as own, _joined(own):
                yield
        else:
            with _local(folder, cpus):
                yield


@contextmanager
def _local(folder: Path, cpus: int) -> Iterator[None]:
    import ray

    try:
        start_local(folder, num_cpus=cpus)
        yield
    finally:
        ray.shutdown()


def start_local(folder: Path, **options: Any) -> None:
    """Start Ray by `ray.init`; again, if its node was too slow (`head.SLOW`)."""
    import ray

    for _ in range(TRIES):
        before = psutil.Process().children(recursive=True)
        try:
            with reraise_sigint(INIT_S), keep_sigterm():
                ray.init(
                    address="local",
                    log_to_driver=False,
                    logging_level="error",
                    _temp_dir=str(folder),
                    **{"include_dashboard": False, **options},
                )
            return
        except Exception as fault:  # Ray has no class for it
            if SLOW not in str(fault):
                raise
            for process in psutil.Process().children(recursive=True):
                if process not in before:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
    raise InputError(
        f"Ray did not start: its node {SLOW}, {TRIES} times; expected a machine with less load"
    )


@contextmanager
def _joined(address: str, env: Mapping[str, str] | None = None) -> Iterator[None]:
    import ray

    _check_answers(address)
    runtime_env: dict[str, Any] = {"env_vars": dict(env)} if env else {}
    if os.nice(0) == LEAST_IMPORTANT:
        # Ray starts the workers, so they do not inherit this process's priority.
        runtime_env["worker_process_setup_hook"] = f"{__name__}.{lower_priority.__name__}"
    try:
        try:
            with reraise_sigint(INIT_S), keep_sigterm():
                ray.init(
                    address=address,
                    log_to_driver=False,
                    logging_level="error",
                    runtime_env=runtime_env or None,
                )
        except (ConnectionError, ValueError, RuntimeError) as fault:
            reason = " ".join(str(fault).split())
            raise InputError(
                f"--address {address!r}: no Ray cluster responded ({reason[:200]}); expected "
                "'auto' or the host:port of a running head, and its token, if any, in "
                f"{access.AUTH_TOKEN}"
            ) from None
        yield
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Refuse an address without a listener; Ray would retry for minutes and ignore Ctrl-C."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise InputError(f"--address {address!r}: expected 'auto' or host:port")
    try:
        socket.create_connection((host.strip("[]"), int(port)), access.ANSWER_S).close()
    except (OSError, OverflowError) as fault:
        reason = getattr(fault, "strerror", None) or str(fault)
        raise InputError(
            f"--address {address!r}: no Ray cluster responds ({reason}); expected 'auto' or "
            "the host:port of a running head"
        ) from None


@contextmanager
def own_token() -> Iterator[None]:
    """Set a token for this session, so that Ray writes none to the home folder."""
    if access.AUTH_TOKEN in os.environ:
        yield
        return
    os.environ[access.AUTH_TOKEN] = secrets.token_hex(32)
    try:
        yield
    finally:
        del os.environ[access.AUTH_TOKEN]
