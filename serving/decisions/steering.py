"""Reports of `loadmaster steer`: what the last step did to a tenant's engine, for its status."""

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field

from loadmaster.serving.decisions.request import iso, read
from loadmaster.serving.decisions.tenant_names import TENANT_FIELD, TenantName
from loadmaster.serving.decisions.tenant_registry import TenantRegistry
from loadmaster.serving.system import Record

LINE_MAX = 300  # characters


class SteeringReport(Record):
    """The last step of a steerer. It is kept in memory only: the next one comes soon."""

    tenant: TenantName = TENANT_FIELD
    engine: str = Field(min_length=1, max_length=40, examples=["slurm"])
    mode: Literal["watch", "shadow", "act"]
    result: str = Field(
        min_length=1, max_length=20, description="such as acted, unchanged, refused or silent"
    )
    line: str = Field(default="", max_length=LINE_MAX, description="what was done, and why")


def read_report(raw: bytes) -> SteeringReport:
    """The report in a request; raises RequestError if it is invalid."""
    return read(SteeringReport, raw)


async def keep_report(
    raw: bytes, tenants: TenantRegistry, clock: Callable[[], float]
) -> dict[str, Any]:
    """Keep the report in a request for the status of its tenant, in place of the last one."""
    report = read_report(raw)
    tenant = tenants.find(report.tenant) or await tenants.get(report.tenant)
    tenant.steering = {**report.model_dump(exclude={"tenant"}), "time": iso(clock())}
    return {"accepted": True, "tenant": tenant.name}
