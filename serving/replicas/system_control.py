"""State of one system in the control process: policies, retraining, and the tenants' database."""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from loadmaster.serving.decisions.request import iso
from loadmaster.serving.decisions.tenant_database import TenantDatabase, TenantRows
from loadmaster.serving.decisions.tenant_names import DEFAULT_TENANT
from loadmaster.serving.decisions.tenant_registry import most_active
from loadmaster.serving.http.idempotency import KEEP_S
from loadmaster.serving.jobs.client import Jobs
from loadmaster.serving.monitoring.decision_log import log_folder
from loadmaster.serving.monitoring.lifecycle import LifecycleState, first_state
from loadmaster.serving.policies.auto_retrain import AutoRetrainer
from loadmaster.serving.policies.control_view import ControlState
from loadmaster.serving.policies.logged_states import LoggedStates
from loadmaster.serving.policies.manager import AdminAction, PolicyManager, Workers
from loadmaster.serving.policies.retraining_job import Retraining
from loadmaster.serving.policies.store import StateWriter, Store, resolve_bundle
from loadmaster.serving.settings import ServeSettings
from loadmaster.serving.system import find_endpoint

Publish = Callable[[str, ControlState], Awaitable[None]]


class SystemControl:
    """One system. Called by the event loop of the control process only."""

    def __init__(
        self, name: str, settings: ServeSettings, workers: Workers, publish: Publish
    ) -> None:
        """Raises InputError for wrong settings."""
        one = settings.systems[name]
        endpoint = find_endpoint(name, one.endpoint)
        store = Store(settings.folder, name)
        bundle = resolve_bundle(one.bundle or endpoint.pretrained)
        configured = store.accept(bundle, iso(time.time()))
        record = store.load()
        saved = record.get("renewal")
        retraining = Retraining(
            name,
            Jobs(),
            settings.folder / "retraining",
            one.retraining,
            saved.get("retraining") if isinstance(saved, dict) else None,
        )
        log = LoggedStates(endpoint, log_folder(settings.folder / "log" / name, one.log))
        retrainer = AutoRetrainer(one.auto_retrain, retraining, time.time, log.recorded)

        async def publish_state(state: ControlState) -> None:
            await publish(name, state)

        window_s = max(one.guard.flap_window_s, one.guard.stabilisation_s)
        file = settings.folder / f"{name}.sqlite"
        self._database = TenantDatabase(file, window_s, KEEP_S, settings.tenants.disk_bytes)
        profile = one.profiles.get(DEFAULT_TENANT, one.profile)
        start = first_state(profile, LifecycleState(one.start))
        self._before_tenants = record.get("keeper"), start.value
        self.manager = PolicyManager(
            workers, StateWriter(store), configured, retrainer, publish_state, time.time
        )
        self._active: dict[str, list[dict[str, Any]]] = {}  # tenants, by gateway

    async def start(self) -> None:
        """Store the default tenant, which always exists."""
        record, start = self._before_tenants
        state = record.get("state", start) if isinstance(record, dict) else start
        await self._database.create_default(record, str(state))

    def take_report(self, gateway: str, report: Mapping[str, Any]) -> None:
        self._active[gateway] = report["active"]
        self.manager.take_report(report)

    def gateway_gone(self, gateway: str) -> None:
        self._active.pop(gateway, None)

    # Calls of gateways.

    async def write(self, rows: Any) -> None:
        """Store changes of tenants; they are durable at the end."""
        await self._database.write(TenantRows(*rows))

    async def load(self, tenant: str) -> Any:
        return self._database.load(tenant, time.time())

    async def summary(self, gateway: str) -> dict[str, Any]:
        """Number of tenants by state, and the most active ones of the other gateways."""
        others = (some for name, some in self._active.items() if name != gateway)
        active = most_active(entry for some in others for entry in some)
        return {"states": dict(self._database.states()), "active": active}

    async def retrain(self, request: Mapping[str, Any]) -> None:
        self.manager.request_retraining(request["why"], request["tenant"], request["inputs"])
        await self.manager.publish()

    async def admin(self, request: Mapping[str, Any]) -> None:
        await self.manager.admin_action(AdminAction(request["action"]), request["raw"])

    async def close(self) -> None:
        await self.manager.close()
        self._database.close()
