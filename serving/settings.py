"""Settings of the decision service: `serve.yaml`, also usable by `serve deploy`."""

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import Settings
from loadmaster.serving.decisions.guard import GuardSettings
from loadmaster.serving.decisions.tenant_names import TenantName, TenantSettings
from loadmaster.serving.monitoring.decision_log import LogSettings
from loadmaster.serving.monitoring.monitor import MonitorSettings
from loadmaster.serving.policies.auto_retrain import AutoRetrainSettings
from loadmaster.serving.policies.retraining_job import RetrainingSettings
from loadmaster.serving.system import Profile, default_systems

PORT = 8700
# Deployments; the others have the names of their systems.
GATEWAY, CONTROL = "gateway", "control"


def default_folder() -> Path:
    """Folder for state and logs, by the XDG base directory specification."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "loadmaster" / "serve"


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _checked_network(text: str) -> str:
    """A network in CIDR notation; raises ValueError for anything else, and for all addresses."""
    try:
        network = ipaddress.ip_network(text)
    except ValueError as fault:
        raise ValueError(f"{fault}; expected a network such as 10.0.0.0/8, or an address") from None
    if not network.prefixlen:
        raise ValueError(f"{text!r} is every address; expected the network of your proxies")
    return str(network)


class EndpointSettings(Settings):
    """One system behind HTTP."""

    renamed: ClassVar[Mapping[str, str]] = {"renewal": "auto_retrain"}
    removed: ClassVar[Mapping[str, str]] = {"batch": "every request is a call of its own"}

    endpoint: str = ""  # "module:object" of a system that is not built in
    bundle: str | None = None  # name of a pretrained bundle, or a folder; None: system's default
    rule: str | None = None  # fallback heuristic; None: the system's best
    deadline_ms: PositiveFloat = Field(default=250.0, le=60_000)
    workers: PositiveInt = 1  # replicas of the system's deployment
    # Options of Serve's `autoscaling_config`; None: always `workers` replicas
    autoscaling: dict[str, Any] | None = None
    cpus: NonNegativeFloat = 1.0  # that Ray reserves for each worker
    # State of a new tenant. OFFLINE: the rule acts until an estimate shows that the policy is good
    # enough; ONLINE: the policy acts on trial; SERVING: without a trial
    start: Literal["OFFLINE", "ONLINE", "SERVING"] = "ONLINE"
    profile: Profile = Profile()  # of tenants that are not in `profiles`
    profiles: dict[TenantName, Profile] = Field(default_factory=dict)  # by tenant
    shadow_share: float = Field(default=1.0, ge=0, le=1)  # of requests sent to a shadow bundle too
    guard: GuardSettings = GuardSettings()
    monitor: MonitorSettings = MonitorSettings()
    log: LogSettings = LogSettings()
    auto_retrain: AutoRetrainSettings = AutoRetrainSettings()
    retraining: RetrainingSettings = RetrainingSettings()


def _most(count: int, autoscaling: Mapping[str, Any] | None) -> int:
    """The highest number of replicas."""
    most = None if autoscaling is None else autoscaling.get("max_replicas")
    return most if isinstance(most, int) else count


class LimitSettings(Settings):
    """Limits on requests, of each gateway."""

    largest_bytes: PositiveInt = 8 << 20  # of a request body
    rate_per_s: PositiveFloat = 2000.0  # requests per token, or per address without tokens
    burst: PositiveInt = 4000
    total_bytes: PositiveInt = 128 << 20  # of all bodies in memory; at least `largest_bytes`
    waiting: PositiveInt = 512  # concurrent requests; beyond that, 503
    body_s: PositiveFloat = 10.0  # how long a body may take to arrive
    wrong_tokens: PositiveInt = 20  # per address; then one a second


class ServeSettings(Settings):
    """The whole service."""

    systems: dict[str, EndpointSettings] = Field(
        default_factory=lambda: {name: EndpointSettings() for name in default_systems()},
        min_length=1,
    )
    host: str = "127.0.0.1"
    port: int = Field(default=PORT, ge=1, le=65535)
    listen: bool = True  # False: reachable by Serve's own proxy only
    tokens: Path | None = None  # token file; LOADMASTER_TOKENS in the environment counts as well
    # Networks whose X-Forwarded-For header names the client
    trusted_proxies: tuple[Annotated[str, AfterValidator(_checked_network)], ...] = ()
    folder: Path = Field(default_factory=default_folder)  # state and logs
    replicas: PositiveInt = 1  # of the gateway
    # Options of Serve's `autoscaling_config` of the gateway; None: always `replicas`
    autoscaling: dict[str, Any] | None = None
    cpus: NonNegativeFloat = 1.0  # that Ray reserves for each gateway
    control_cpus: NonNegativeFloat = 0.1  # that Ray reserves for the control process
    # What else a node must have for the gateway and workers, such as {"node:10.0.0.5": 0.001}
    resources: dict[str, NonNegativeFloat] = Field(default_factory=dict)
    limits: LimitSettings = LimitSettings()
    tenants: TenantSettings = TenantSettings()

    def require_tokens(self, tokens: bool) -> None:
        """Raise InputError if other machines could use the service without a token."""
        if self.listen and not self.is_private and not tokens:
            raise InputError(
                f"--host {self.host} can be reached from other machines without a token; expected "
                "--tokens FILE (lines `read TOKEN` or `admin TOKEN`), or 127.0.0.1"
            )

    def actor_options(self, cpus: float) -> dict[str, Any]:
        """Options of Ray for an actor of the service that uses so many CPUs."""
        return {"num_cpus": cpus, "resources": dict(self.resources)}

    @property
    def reserved_cpus(self) -> float:
        """CPUs that Ray reserves for the service, at most."""
        workers = sum(
            _most(one.workers, one.autoscaling) * one.cpus for one in self.systems.values()
        )
        return self.control_cpus + _most(self.replicas, self.autoscaling) * self.cpus + workers

    @property
    def is_private(self) -> bool:
        """Whether the service can only be reached from this machine."""
        return is_loopback(self.host)
