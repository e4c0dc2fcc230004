"""Settings of the decision service: `serve.yaml`, also usable by `serve deploy`."""

import ipaddress
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import Settings
from loadmaster.serving.decisions.guard import GuardSettings
from loadmaster.serving.monitoring.decision_log import LogSettings
from loadmaster.serving.monitoring.monitor import MonitorSettings
from loadmaster.serving.policies.auto_retrain import AutoRetrainSettings
from loadmaster.serving.policies.retraining_job import RetrainingSettings

PORT = 8700
GATEWAY = "gateway"  # deployment that listens; the others have the names of their systems


def default_folder() -> Path:
    """Folder for state and logs, by the XDG base directory specification."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "loadmaster" / "serve"


@lru_cache(maxsize=64)  # without tokens it is called for every request
def is_loopback(host: str) -> bool:
    """Whether a host name or address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class EndpointSettings(Settings):
    """One system behind HTTP."""

    renamed: ClassVar[Mapping[str, str]] = {"renewal": "auto_retrain"}
    removed: ClassVar[Mapping[str, str]] = {"batch": "every request is a call of its own"}

    endpoint: str = ""  # "module:object" of a system that is not built in
    bundle: str | None = None  # name of a pretrained bundle, or a folder; None: system's default
    rule: str | None = None  # fallback heuristic; None: the system's best
    deadline_ms: PositiveFloat = Field(default=250.0, le=60_000)
    workers: PositiveInt = 1  # replicas of the system's deployment
    # OFFLINE: the rule acts until the policy has proven itself
    start: Literal["OFFLINE", "SERVING"] = "SERVING"
    shadow_share: float = Field(default=1.0, ge=0, le=1)  # of requests sent to a shadow bundle too
    guard: GuardSettings = GuardSettings()
    monitor: MonitorSettings = MonitorSettings()
    log: LogSettings = LogSettings()
    auto_retrain: AutoRetrainSettings = AutoRetrainSettings()
    retraining: RetrainingSettings = RetrainingSettings()


class LimitSettings(Settings):
    """Limits on requests."""

    largest_bytes: PositiveInt = 8 << 20  # of a request body
    rate_per_s: PositiveFloat = 2000.0  # requests per token, or per address without tokens
    burst: PositiveInt = 4000
    waiting: PositiveInt = 512  # concurrent requests; beyond that, 503
    body_s: PositiveFloat = 10.0  # how long a body may take to arrive
    wrong_tokens: PositiveInt = 20  # per address; then one a second


class ServeSettings(Settings):
    """The whole service."""

    systems: dict[str, EndpointSettings] = Field(
        default_factory=lambda: {"das": EndpointSettings(), "decima": EndpointSettings()},
        min_length=1,
    )
    host: str = "127.0.0.1"
    port: int = Field(default=PORT, ge=1, le=65535)
    listen: bool = True  # False: reachable by Serve's own proxy only
    tokens: Path | None = None  # token file; LOADMASTER_TOKENS in the environment counts as well
    folder: Path = Field(default_factory=default_folder)  # state and logs
    limits: LimitSettings = LimitSettings()

    def require_tokens(self, tokens: bool) -> None:
        """Raise InputError if other machines could use the service without a token."""
        if self.listen and not self.is_private and not tokens:
            raise InputError(
                f"--host {self.host} can be reached from other machines without a token; expected "
                "--tokens FILE (lines `read TOKEN` or `admin TOKEN`), or 127.0.0.1"
            )

    @property
    def is_private(self) -> bool:
        """Whether the service can only be reached from this machine."""
        return is_loopback(self.host)
