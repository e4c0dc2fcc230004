"""The service on Ray Serve: a gateway, and a deployment for each system.

`loadmaster serve` runs it; so does `serve deploy` with a file whose import path is
`loadmaster.serving.app:build` and whose `args` are the settings (`serving/settings.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from loadmaster.envs.settings import build_settings
from loadmaster.serving.freeze_gc import freeze_gc
from loadmaster.serving.policies.store import resolve_bundle
from loadmaster.serving.settings import GATEWAY, ServeSettings
from loadmaster.serving.system import find_endpoint
from loadmaster.serving.worker.rpc import DECIDE, PROPOSE, ConnectionPool
from loadmaster.serving.worker.worker import SystemWorker

ASKED_AT_ONCE = 10_000  # the gateway has limits of its own, and says so in words
DEPLOYMENT_OPTIONS: dict[str, Any] = {  # of every deployment
    "max_ongoing_requests": ASKED_AT_ONCE,
    "ray_actor_options": {"num_cpus": 0},
    "logging_config": {"enable_access_log": False},
}
HEALTH_OPTIONS = {
    "health_check_period_s": 2.0,
    "health_check_timeout_s": 10.0,
    "graceful_shutdown_wait_loop_s": 0.1,  # who has nothing under way ends at once
}


def build(args: Mapping[str, Any]) -> Application:
    """The application of these settings; an InputError says what is wrong with them."""
    settings = build_settings(ServeSettings, args)
    workers = {}
    for system, one in settings.systems.items():
        endpoint = find_endpoint(system, one.endpoint)
        folder = resolve_bundle(one.bundle or endpoint.pretrained)
        deployment = serve.deployment(
            SystemWorker,
            name=system,
            num_replicas=one.workers,
            graceful_shutdown_timeout_s=2.0,
            **DEPLOYMENT_OPTIONS,
            **HEALTH_OPTIONS,
        )
        rule = one.rule or endpoint.rules[0]
        workers[system] = deployment.bind(system, one.endpoint, rule, str(folder.resolve()))
    return GatewayDeployment.bind(  # type: ignore[attr-defined]
        settings.model_dump(mode="json"), workers
    )


class RemoteWorker:
    """A system's deployment: by a line of our own where there is one, else by its handle.

    Only bytes and texts cross, on the handle as msgpack: no pickle.
    """

    def __init__(self, handle: DeploymentHandle[Any], workers: int) -> None:
        self._handle = handle.options(
            request_serialization="msgpack", response_serialization="msgpack", _by_reference=False
        )
        # One who only watches must not keep those waiting who act: each has lines of its own.
        self._acting = ConnectionPool(self._handle.door.remote, workers)
        self._beside = ConnectionPool(self._handle.door.remote, workers)

    def decide(self, version: str, folder: str, raw: list[bytes]) -> Awaitable[list[bytes]]:
        if line := self._acting.line():
            return line.ask(DECIDE, version, folder, raw)
        answers: Awaitable[list[bytes]] = self._handle.decide.remote(version, folder, raw)
        return answers

    def propose(self, version: str, folder: str, raw: list[bytes]) -> Awaitable[list[bytes]]:
        if line := self._beside.line():
            return line.ask(PROPOSE, version, folder, raw)
        answers: Awaitable[list[bytes]] = self._handle.propose.remote(version, folder, raw)
        return answers

    def load(self, folder: str) -> Awaitable[bytes]:
        answer: Awaitable[bytes] = self._handle.load.remote(folder)
        return answer


@serve.deployment(
    name=GATEWAY, graceful_shutdown_timeout_s=5.0, **DEPLOYMENT_OPTIONS, **HEALTH_OPTIONS
)
@serve.ingress()
class GatewayDeployment:
    """One replica: guard, monitor and log must see every decision."""

    def __init__(
        self, settings: Mapping[str, Any], workers: Mapping[str, DeploymentHandle[Any]]
    ) -> None:
        from loadmaster.serving.http.app_factory import assemble

        chosen = build_settings(ServeSettings, settings)
        remote = {
            system: RemoteWorker(handle, chosen.systems[system].workers)
            for system, handle in workers.items()
        }
        self._app = assemble(chosen, remote).app
        freeze_gc()

    def __serve_build_asgi_app__(self) -> Any:
        return self._app
