"""Reports of `loadmaster steer`: what the last step did to a tenant's engine, for its status."""

from typing import Any, Literal

from pydantic import Field

from loadmaster.serving.decisions.request import iso, read
from loadmaster.serving.decisions.tenant_names import TENANT_FIELD, TenantName
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


def shown_report(raw: bytes, now_s: float) -> dict[str, Any]:
    """The report in a request as the status has it."""
    return {**read_report(raw).model_dump(exclude={"tenant"}), "time": iso(now_s)}
