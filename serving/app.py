"""The service on Ray Serve: a gateway, and a deployment for each system.

`loadmaster serve` runs it, and so does `serve deploy` with a file whose import path is
`loadmaster.serving.app:build` and whose `args` are the settings (`serving/settings.py`).
"""

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from loadmaster.envs.settings import build_settings
from loadmaster.serving.policies.store import resolve_bundle
from loadmaster.serving.settings import GATEWAY, ServeSettings
from loadmaster.serving.system import find_endpoint
from loadmaster.serving.worker.rpc import RemoteWorker
from loadmaster.serving.worker.worker import SystemWorker, freeze_gc

DEPLOYMENT_OPTIONS: dict[str, Any] = {  # of every deployment
    "max_ongoing_requests": 10_000,  # the gateway has limits of its own, with clear errors
    "ray_actor_options": {"num_cpus": 0},
    "logging_config": {"enable_access_log": False},
}
HEALTH_OPTIONS = {
    "health_check_period_s": 2.0,
    "health_check_timeout_s": 10.0,
    "graceful_shutdown_wait_loop_s": 0.1,  # a replica without pending requests stops at once
}


def build(args: Mapping[str, Any]) -> Application:
    """Build the Serve application of these settings; raises InputError for wrong ones."""
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
