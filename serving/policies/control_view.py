"""A gateway's copy of the control process's state of a system, and its reports to that process."""

from collections.abc import Callable
from typing import Any, NamedTuple

from loadmaster.serving.decisions.tenant_names import DEFAULT_TENANT
from loadmaster.serving.policies.store import Version
from loadmaster.serving.policies.versions import PolicySlots


class ControlState(NamedTuple):
    """Decided in the control process, obeyed by every gateway."""

    roles: PolicySlots
    promoted: bool  # the serving bundle, by an action and not by configuration
    why: str  # the serving bundle was replaced
    retraining: dict[str, Any] | None  # status
    tenant: str  # that is retrained for
    fault: str | None  # why the state could not be written

    def record(self) -> dict[str, Any]:
        return {**self._asdict(), "roles": self.roles.record()}

    @classmethod
    def restored(cls, record: dict[str, Any]) -> "ControlState":
        """From `record()` of the control process, which is trusted."""
        roles = dict(record["roles"])
        for slot in ("serving", "shadow", "previous"):
            roles[slot] = roles[slot] and Version(**roles[slot])
        return cls(**{**record, "roles": PolicySlots(**roles)})


class ControlView:
    """The latest state of one system. Called by the event loop only."""

    def __init__(self, request: Callable[[str, str], None]) -> None:
        """`request(why, tenant)` lets the control process retrain the policy."""
        self.state: ControlState | None = None  # None: not known yet
        self.request_retraining = request

    @property
    def roles(self) -> PolicySlots:
        assert self.state is not None
        return self.state.roles

    @property
    def retraining(self) -> dict[str, Any] | None:
        return self.state and self.state.retraining

    @property
    def fault(self) -> str | None:
        return self.state and self.state.fault

    @property
    def retrained_tenant(self) -> str:
        return DEFAULT_TENANT if self.state is None else self.state.tenant
