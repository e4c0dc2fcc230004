"""Admin actions on one tenant: pause, estimate of the policy's reward, profile, memory.

All are durable when they return. Only the gateway that owns the tenant carries them out.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from loadmaster.serving.decisions.policy_memory import Singles, encode_numbers, write_memory
from loadmaster.serving.decisions.request import RequestError
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
        self._require_serving(request["version"])
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

    async def memory(self, name: str, request: Mapping[str, Any]) -> None:
        """Take a MemoryRequest; raises Conflict if it is of a bundle that does not serve."""
        lines = [
            write_memory(kind, _singles(numbers, f"memory.{kind}"))
            for kind, numbers in request["memory"].items()
        ]
        episodes = request["episodes"]
        learned = episodes and encode_numbers(_singles(episodes["numbers"], "episodes.numbers"))
        tenant = await self._tenants.get(name)
        self._require_serving(request["version"])
        for line in lines:
            tenant.remember(line)
        if episodes is not None:
            tenant.set_learned(episodes["format"], learned)
        await self._save(tenant)

    def _require_serving(self, version: str | None) -> None:
        serving = self._control.roles.serving.version
        if version not in (None, serving):
            raise Conflict(f"it is of bundle {version}; expected {serving}, which serves")

    async def _save(self, tenant: Tenant) -> None:
        self._tenants.save(tenant)
        await self._tenants.parts.store.flush()


def _singles(numbers: list[float], field: str) -> Singles:
    """Numbers in single precision; raises RequestError if one is too large for that."""
    with np.errstate(over="ignore"):
        found = np.array(numbers, np.float32)
    if not np.isfinite(found).all():
        raise RequestError(f"{field}: a number beyond 3.4e38; expected single precision", field)
    return found
