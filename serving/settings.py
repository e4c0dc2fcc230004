"""What a user may set about the decision service: `serve.yaml`, also usable by `serve deploy`."""

from __future__ import annotations

import ipaddress
import os
from functools import lru_cache
from pathlib import Path

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import Settings
from loadmaster.serving.decisions.guard import GuardSettings
from loadmaster.serving.monitoring.decision_log import LogSettings
from loadmaster.serving.monitoring.monitor import MonitorSettings
from loadmaster.serving.policies.auto_retrain import RenewalSettings
from loadmaster.serving.policies.retraining_job import RetrainingSettings

PORT = 8700
GATEWAY = "gateway"  # the deployment that listens; the others have their systems' names


def default_folder() -> Path:
    """Where the service keeps what must survive a restart: the place XDG names for that."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "loadmaster" / "serve"


@lru_cache(maxsize=64)  # without tokens it is asked of every request
def is_loopback(host: str) -> bool:
    """Whether that name or address is this machine's own, and no other's."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class EndpointSettings(Settings):
    """One system behind HTTP."""

    endpoint: str = ""  # "module:object" of a system that is not built in
    bundle: str | None = None  # a pretrained one's name, or a folder; None: the system's own choice
    rule: str | None = None  # the fallback; None: the best heuristic there is
    deadline_ms: PositiveFloat = Field(default=250.0, le=60_000)
    batch: PositiveInt = Field(default=64, le=1024)  # requests in one call of the worker; 1: none
    workers: PositiveInt = 1  # replicas of the system's deployment
    start: str = "SERVING"  # or OFFLINE: the rule acts until the policy has proven itself
    shadow_share: float = Field(default=1.0, ge=0, le=1)  # of decisions a shadow bundle also makes
    guard: GuardSettings = GuardSettings()
    monitor: MonitorSettings = MonitorSettings()
    log: LogSettings = LogSettings()
    renewal: RenewalSettings = RenewalSettings()
    retraining: RetrainingSettings = RetrainingSettings()

    @field_validator("start")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in ("OFFLINE", "SERVING"):
            raise ValueError(f"{value!r} is unknown; expected OFFLINE or SERVING")
        return value


class LimitSettings(Settings):
    """What one who asks may ask for."""

    largest_bytes: PositiveInt = 8 << 20  # of a request
    rate_per_s: PositiveFloat = 2000.0  # requests of one token, or of one address without tokens
    burst: PositiveInt = 4000
    waiting: PositiveInt = 512  # requests at once; beyond that, 503
    body_s: PositiveFloat = 10.0  # how long a request may take to arrive
    wrong_tokens: PositiveInt = 20  # of one address; then one a second


class ServeSettings(Settings):
    """The whole service."""

    systems: dict[str, EndpointSettings] = Field(
        default_factory=lambda: {"das": EndpointSettings(), "decima": EndpointSettings()}
    )
    host: str = "127.0.0.1"
    port: int = Field(default=PORT, ge=1, le=65535)
    listen: bool = True  # False: only Serve's own proxy leads here, where the cluster has one
    tokens: Path | None = None  # the file; LOADMASTER_TOKENS in the environment counts as well
    folder: Path = Field(default_factory=default_folder)  # state and logs
    limits: LimitSettings = LimitSettings()

    @model_validator(mode="after")
    def _some_system(self) -> ServeSettings:
        if not self.systems:
            raise ValueError("systems is empty; expected at least one, such as decima: {}")
        return self

    def check_openness(self, tokens: bool) -> None:
        """Without tokens nobody but this machine may ask; an InputError where others could."""
        if self.listen and not self.is_private and not tokens:
            raise InputError(
                f"--host {self.host} would let others in without a token; expected --tokens FILE "
                "(lines `read TOKEN` or `admin TOKEN`), or 127.0.0.1"
            )

    @property
    def is_private(self) -> bool:
        """Whether only this machine can reach the service."""
        return is_loopback(self.host)
