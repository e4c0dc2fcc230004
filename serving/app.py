"""The service on Ray Serve: a control process, gateways, and workers of each system.

`loadmaster serve` runs it, and so does `serve deploy` with a file whose import path is
`loadmaster.serving.app:build` and whose `args` are the settings (`serving/settings.py`).
"""

import asyncio
import contextlib
import logging
import os
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError
from ray import serve
from ray._private.worker import global_worker
from ray.serve import Application
from ray.serve.config import AutoscalingConfig
from ray.serve.handle import DeploymentHandle
from ray.util import get_node_ip_address

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.serving.decisions.request import line_of
from loadmaster.serving.policies.store import resolve_bundle
from loadmaster.serving.replicas.autoscaling import (
    GATEWAY_TARGET,
    LOAD,
    WORKER_TARGET,
    autoscaling_options,
)
from loadmaster.serving.replicas.control import Control
from loadmaster.serving.replicas.control_client import ControlClient, find_control
from loadmaster.serving.replicas.control_files import in_use, lock_folder
from loadmaster.serving.replicas.link import Peer
from loadmaster.serving.settings import CONTROL, GATEWAY, ServeSettings
from loadmaster.serving.system import find_endpoint
from loadmaster.serving.worker.pool import WorkerPool
from loadmaster.serving.worker.worker import SystemWorker, freeze_gc

log = logging.getLogger(__name__)

DEPLOYMENT_OPTIONS: dict[str, Any] = {  # of every deployment
    "max_ongoing_requests": 10_000,  # the gateway has limits of its own, with clear errors
    "logging_config": {"enable_access_log": False},
    "health_check_period_s": 2.0,
    "health_check_timeout_s": 10.0,
    "graceful_shutdown_wait_loop_s": 0.1,  # a replica without pending requests stops at once
}
WHERE_S = 5.0  # how long a control process may take to answer
LOCK_S = 0.02  # between attempts to lock the folder
SURGE_PERCENT = 100  # an upgrade starts the new replicas before it stops the old ones


def build(args: Mapping[str, Any]) -> Application:
    """Build the Serve application of these settings; raises InputError for wrong ones."""
    settings = build_settings(ServeSettings, args)
    values = settings.model_dump(mode="json")
    control = ControlDeployment.options(  # type: ignore[attr-defined]
        ray_actor_options=settings.actor_options(settings.control_cpus)
    ).bind(values)
    workers = []
    for system, one in settings.systems.items():
        endpoint = find_endpoint(system, one.endpoint)
        folder = resolve_bundle(one.bundle or endpoint.pretrained)
        deployment = serve.deployment(
            WorkerDeployment,
            name=system,
            ray_actor_options=settings.actor_options(one.cpus),
            graceful_shutdown_timeout_s=2.0,
            max_surge_percent=SURGE_PERCENT,
            **_replicas(one.workers, one.autoscaling, WORKER_TARGET, f"systems.{system}"),
            **DEPLOYMENT_OPTIONS,
        )
        rule = one.rule or endpoint.rules[0]
        workers.append(deployment.bind(system, one.endpoint, rule, str(folder.resolve()), control))
    gateway = GatewayDeployment.options(  # type: ignore[attr-defined]
        ray_actor_options=settings.actor_options(settings.cpus),
        **_replicas(settings.replicas, settings.autoscaling, GATEWAY_TARGET, "the service"),
    )
    return cast(Application, gateway.bind(values, control, workers))


def _replicas(
    count: int, autoscaling: dict[str, Any] | None, target: float, owner: str
) -> dict[str, Any]:
    """Options for a fixed or for an automatic number of replicas."""
    if autoscaling is None:
        return {"num_replicas": count}
    chosen = autoscaling_options(autoscaling, target)
    try:
        return {"autoscaling_config": AutoscalingConfig(**chosen)}
    except ValidationError as fault:
        first = fault.errors()[0]
        where = ".".join(map(str, first["loc"])) or "autoscaling"
        line = f"autoscaling of {owner}: {where}: {first['msg']}; expected options of Ray Serve"
        raise InputError(line) from None


@serve.deployment(
    name=CONTROL,
    num_replicas=1,
    graceful_shutdown_timeout_s=10.0,
    max_surge_percent=SURGE_PERCENT,
    **DEPLOYMENT_OPTIONS,
)
class ControlDeployment:
    """The control process. In an upgrade the new one waits for the old one to release the folder,
    with all modules loaded."""

    async def __init__(self, settings: Mapping[str, Any]) -> None:  # type: ignore[misc]
        self._settings = build_settings(ServeSettings, settings)
        for system, one in self._settings.systems.items():
            find_endpoint(system, one.endpoint)
        self._control: Control | None = None
        lock = lock_folder(self._settings.folder)
        if lock is not None:
            await self._start(lock)
        self._waiting = asyncio.get_running_loop().create_task(self._wait_for_folder())
        freeze_gc()

    async def _start(self, lock: int) -> None:
        control = Control(self._settings, lock)
        await control.start(get_node_ip_address())
        self._control = control

    async def _wait_for_folder(self) -> None:
        while self._control is None:
            await asyncio.sleep(LOCK_S)
            if (lock := lock_folder(self._settings.folder)) is not None:
                await self._start(lock)

    async def where(self) -> list[Any]:
        """Address and key for links."""
        if self._control is None or self._control.address is None:
            raise in_use(self._settings.folder)
        return [*self._control.address, self._control.key]

    async def check_health(self) -> None:
        if self._waiting.done():
            self._waiting.result()
        if self._control is not None:
            self._control.check()

    async def __del__(self) -> None:
        """Called by Serve when it stops the replica."""
        self._waiting.cancel()
        if self._control is not None:
            await self._control.close()


def _where(control: DeploymentHandle[Any]) -> Callable[[], Awaitable[list[Any]]]:
    """Calls of a handle carry bytes and text as msgpack, never a pickle."""
    handle = control.options(
        request_serialization="msgpack", response_serialization="msgpack", _by_reference=False
    )

    async def where() -> list[Any]:
        while True:
            try:
                found: list[Any] = await asyncio.wait_for(handle.where.remote(), WHERE_S)
                return found
            except Exception as fault:  # it is starting, waits for the folder, or has ended
                log.info("the control process is not up: %s", line_of(fault))
                await asyncio.sleep(LOCK_S)

    return where


def _socket_folder() -> Path | None:
    """Ray's folder for sockets, which is deleted with the session."""
    node = global_worker.node
    folder = None if node is None else Path(node.get_session_dir_path()) / "sockets"
    return folder if folder is not None and os.access(folder, os.W_OK) else None


class WorkerDeployment(SystemWorker):
    """A worker that the control process announces to the gateways."""

    async def __init__(  # type: ignore[misc]
        self,
        system: str,
        reference: str,
        rule: str,
        folder: str,
        control: DeploymentHandle[Any],
    ) -> None:
        super().__init__(system, reference, rule, folder)
        self._system, self._name, where = system, uuid.uuid4().hex, _where(control)
        _, _, key = await where()
        self._address = self.rpc.listen(self._name, get_node_ip_address(), key, _socket_folder())
        handlers = {"load": self.load}
        client = ControlClient(find_control(where))
        self._link = asyncio.get_running_loop().create_task(client.run(handlers, self._join))

    async def _join(self, peer: Peer) -> None:
        body = {"system": self._system, "name": self._name, "address": self._address}
        await self.load(await peer.call("join worker", body))
        await peer.call("worker ready", body)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return {LOAD: self.meter.read()}

    async def __del__(self) -> None:
        """Called by Serve when it stops the replica: gateways call it no more."""
        self._link.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._link
        self.rpc.close()
        while self.meter.under_way:
            await asyncio.sleep(0.01)


@serve.deployment(
    name=GATEWAY,
    graceful_shutdown_timeout_s=10.0,
    max_surge_percent=SURGE_PERCENT,
    **DEPLOYMENT_OPTIONS,
)
@serve.ingress()
class GatewayDeployment:
    """A gateway: listens, and decides for the tenants that it owns."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        control: DeploymentHandle[Any],
        workers: list[DeploymentHandle[Any]],
    ) -> None:
        """The workers' handles are not called: they make the workers a part of the application."""
        from loadmaster.serving.http.app_factory import Service

        chosen = build_settings(ServeSettings, settings)
        where = _where(control)
        pools = {system: WorkerPool() for system in chosen.systems}
        client = ControlClient(find_control(where))
        host, sockets = get_node_ip_address(), _socket_folder()
        self._service = Service(chosen, pools, client, host, where, sockets)
        freeze_gc()

    def __serve_build_asgi_app__(self) -> Any:
        return self._service.app

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return {LOAD: self._service.meter.read()}
