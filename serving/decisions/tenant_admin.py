"""Admin actions on one tenant: pause, estimate of the policy's reward, profile.

All are durable when they return. Only the gateway that owns the tenant carries them out.
"""

from collections.abc import Callable, Mapping
from typing import Any

from loadmaster.serving.decisions.tenant import Tenant
from loadmaster.serving.decisions.tenant_registry import TenantRegistry
from loadmaster.serving.monitoring.lifecycle import Estimate
from loadmaster.serving.policies.control_view import ControlView
from loadmaster.serving.policies.versions import Conflict
from loadmaster.serving.system import Endpoint, Profile


class TenantAdmin:
    """Actions on the tenants of one system. Called by the event loop only."""

    def __init__(
        self,
        endpoint: Endpoint[Any, Any, Any],
        tenants: TenantRegistry,
        control: ControlView,
        clock: Callable[[], float],
    ) -> None:
        self._endpoint, self._tenants = endpoint, tenants
        self._control, self._clock = control, clock

    async def pause(self, name: str, reason: str | None) -> None:
        """Pause a tenant, or resume with None."""
        tenant = await self._tenants.get(name)
        tenant.paused = reason
        await self._save(tenant)

    async def estimate(self, name: str, request: Mapping[str, Any]) -> None:
        """Take an EstimateRequest; raises Conflict if it is of a bundle that does not serve."""
        tenant = await self._tenants.get(name)
        serving = self._control.roles.serving.version
        if request["version"] not in (None, serving):
            wrong = f"the estimate is of bundle {request['version']}"
            raise Conflict(f"{wrong}; expected {serving}, which serves")
        estimate = Estimate(*(request[field] for field in Estimate._fields))
        tenant.recorder.set_estimate(estimate, self._clock())
        await self._save(tenant)

    async def profile(self, name: str, request: Mapping[str, Any]) -> None:
        """Take a ProfileRequest."""
        given = request["profile"]
        profile = None if given is None else self._endpoint.complete(Profile.model_validate(given))
        tenant = await self._tenants.get(name)
        tenant.recorder.set_profile(profile, self._clock())
        await self._save(tenant)

    async def _save(self, tenant: Tenant) -> None:
        self._tenants.save(tenant)
        await self._tenants.parts.store.flush()
