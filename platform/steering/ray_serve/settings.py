"""Settings of a deployment, and of the policy class: what Serve does not know of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from loadmaster.envs.settings import Settings
from loadmaster.serving.client.clients import DEFAULT_URL

Mode = Literal["watch", "shadow", "act"]  # as in platform/steering/core.py, which imports more
TRAINED_STEP_S = 60.0  # a control step of the shipped policies
REPORTS_PER_STEP = 4
EXPORT_VARIABLE = "RAY_metrics_report_interval_ms"
EXPORT_MS = 10_000  # Ray's default
# A report covers a whole number of exports to within this share, or so many that a part of one
# matters little, or so many intervals.
WHOLE, ENOUGH_EXPORTS, MOST_POOLED = 0.02, 10.0, 8


class DeploymentSettings(Settings):
    """A replica as the endpoint sees it: a pod with a fixed size."""

    slo_s: float = Field(
        default=1.0, gt=0, le=1e6, description="To keep: the 99th percentile of the latency."
    )
    step_s: float = Field(
        default=TRAINED_STEP_S,
        ge=2,
        le=3600,
        description="Seconds from decision to decision. Policies are trained with 60: with another "
        "number all times in a state are scaled by 60 / step_s.",
    )
    capacity: Literal["requests", "cpu"] = Field(
        default="requests",
        description="What a replica runs out of: requests: places of requests processed at once, "
        "`slots` of them; cpu: processor time, `cpus`.",
    )
    slots: float | None = Field(
        default=None,
        gt=0,
        le=1000,
        description="Requests that a replica processes at once, such as its max_ongoing_requests. "
        "Default: target_ongoing_requests of the autoscaling config; without one "
        "max_ongoing_requests.",
    )
    request_s: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="Work of a request in an idle replica, if its processing time includes waiting "
        "inside of the replica. Default: the mean processing time.",
    )
    parts: float = Field(
        default=1.0,
        ge=1,
        le=1e5,
        description="Counts a request as so many short ones, which divides all latencies of a "
        "state. The shipped policy knows requests of 5 to 450 ms in a state's time.",
    )
    export_s: float | None = Field(
        default=None,
        gt=0,
        le=3600,
        description="Seconds from export to export of a node's metrics. Default: the variable "
        f"{EXPORT_VARIABLE}, else 10, as Ray has it.",
    )
    cpus: float = Field(
        default=1.0, gt=0, le=1e4, description="Cores of a replica, for capacity cpu."
    )
    memory_mib: float | None = Field(
        default=None,
        ge=1,
        le=1e9,
        description="Memory of a replica. Default: not known, taken as a typical application's.",
    )

    @property
    def scale(self) -> float:
        """Seconds of a state for each second."""
        return TRAINED_STEP_S / self.step_s

    @property
    def latency_scale(self) -> float:
        """The same for latencies, of requests in parts."""
        return self.scale / self.parts

    @property
    def interval_s(self) -> float:
        """Seconds from report to report."""
        return self.step_s / REPORTS_PER_STEP

    @property
    def pooled(self) -> int:
        """Intervals that a report is the mean of, so that it covers whole exports.

        An interval of 15 s has one or two exports of 10 s, so its rate is wrong by a third.
        """
        export_s = self.export_s or float(os.environ.get(EXPORT_VARIABLE, EXPORT_MS)) / 1000.0
        for count in range(1, MOST_POOLED):
            exports = count * self.interval_s / export_s
            whole = round(exports)
            if exports >= ENOUGH_EXPORTS or (whole and abs(exports - whole) < WHOLE * whole):
                return count
        return MOST_POOLED


class PolicySettings(DeploymentSettings):
    """`policy_kwargs` of the policy class."""

    mode: Mode = "watch"
    url: str = Field(default=DEFAULT_URL, description="Address of the service.")
    token_file: Path | None = Field(
        default=None,
        description="With the service's token, on the node of Serve's controller. Default: the "
        "variable LOADMASTER_TOKEN.",
    )
    tenant: str | None = Field(default=None, description="Default: by application and deployment.")
    deadline_s: float = Field(default=2.0, gt=0, le=60, description="Of a call of the service.")
    stale_s: float | None = Field(
        default=None,
        gt=0,
        description="Age of a decision from which on the rule counts. Default: 2.5 control steps.",
    )
    queued_s: float | None = Field(
        default=15.0,
        ge=0,
        description="Once requests have waited for a replica so long, and for a control step "
        "after, there are never fewer replicas than the rule wants. null: no such floor.",
    )
    rule_upscale_delay_s: float = Field(
        default=0.0,
        ge=0,
        description="For the rule alone, where upscale_delay_s is shorter so that decisions take "
        "effect at once.",
    )
    rule_downscale_delay_s: float = Field(default=0.0, ge=0, description="Likewise.")
    load_metric: str | None = Field(
        default=None,
        description="A metric of record_autoscaling_stats that counts as the ongoing requests, of "
        "deployments that requests reach past Serve's router. Decisions then need request_s.",
    )
    metrics: tuple[str, ...] | None = Field(
        default=None,
        description="HOST:PORT of the nodes' metrics. Default: of all nodes of the cluster.",
    )

    @model_validator(mode="after")
    def check_stale(self) -> Self:
        if self.stale_s is not None and self.stale_s <= self.step_s:
            raise ValueError(
                f"stale_s is {self.stale_s:g}; expected more than step_s, {self.step_s:g}"
            )
        return self

    @property
    def fresh_s(self) -> float:
        """Age up to which a decision counts."""
        return 2.5 * self.step_s if self.stale_s is None else self.stale_s
