"""Which systems the service knows by name; others are given as "module:object"."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, field_validator

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.registry import resolve
from loadmaster.models.policy import Proposal

# What a system offers to the decision service: its record of schemas, policy and rule.
#
# The service knows no system by name. Whoever adds one writes an `Endpoint`; guard, fallback, log,
# monitor, console and clients then work for it as they are.


class Record(BaseModel):
    """Base of what crosses the wire: closed to unknown fields and to numbers that are none."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class State(Record):
    """What a decision is asked about. A later form of it will have another version."""

    version: Literal[1] = 1

    @field_validator("version", mode="before")
    @classmethod
    def _is_a_number(cls, value: Any) -> Any:
        return None if value is True else value  # which Python takes for 1


StateType = TypeVar("StateType", bound=State)
DecisionType = TypeVar("DecisionType", bound=Record)
OutcomeType = TypeVar("OutcomeType", bound=Record)


class Quantity(NamedTuple):
    """A number that a decision sets: what the guard bounds, and whose ups and downs it counts."""

    name: str  # stays the same from decision to decision: "job 17"
    current: float  # as the state tells it
    proposed: float


class Policy(Protocol):
    """Decides about states. It is only ever called by one thread at a time."""

    @property
    def name(self) -> str: ...  # of the bundle, or of the rule
    @property
    def version(self) -> str: ...  # of the bundle: the first 12 digits of its weights' sha256

    def decide(self, state: Any) -> Proposal: ...


class Endpoint(ABC, Generic[StateType, DecisionType, OutcomeType]):
    """A system's record for the service. One instance serves a process; it holds no state."""

    system: ClassVar[str]
    summary: ClassVar[str]  # one line for the list of systems
    pretrained: ClassVar[str]  # the bundle served where nobody names another
    rules: ClassVar[tuple[str, ...]]  # heuristics that can stand in, the best one first
    state: type[StateType]
    decision: type[DecisionType]
    outcome: type[OutcomeType]  # what feedback tells

    @abstractmethod
    def examples(self) -> Mapping[str, StateType]:
        """States by name: at least "small" and "large". OpenAPI, benchmarks, `loadmaster state`."""

    def warm_up(self, *policies: Policy) -> None:
        """Let them decide on the examples: the first decision compiles, where that was never done,
        and no request shall wait for it."""
        for policy, state in product(policies, self.examples().values()):
            policy.decide(state)

    @abstractmethod
    def policy(self, folder: Path) -> Policy:
        """The bundle in that folder at work; an InputError says what is wrong with it."""

    @abstractmethod
    def rule(self, name: str) -> Policy:
        """One of `rules` at work."""

    @abstractmethod
    def quantities(self, state: StateType, decision: DecisionType) -> tuple[Quantity, ...]:
        """What the decision sets, for the guard."""

    @abstractmethod
    def constrain(
        self, state: StateType, decision: DecisionType, allowed: Mapping[str, float]
    ) -> DecisionType:
        """The decision with those quantities brought from `proposed` to what is allowed, which
        lies between `current` and `proposed` or beyond `current`; nothing else changes."""

    @abstractmethod
    def validate_decision(self, state: StateType, decision: DecisionType) -> str | None:
        """Why the decision cannot be carried out in that state; None if it can."""

    @abstractmethod
    def features(self, state: StateType) -> Mapping[str, float]:
        """A few figures of the input, watched for drift: load, queue, sizes."""

    @abstractmethod
    def reward(self, outcome: OutcomeType) -> float:
        """How good the outcome was; higher is better."""

    @abstractmethod
    def retraining(self, features: Mapping[str, float]) -> Mapping[str, Any]:
        """Settings of the environment that resembles what was seen: means of `features`."""


BUILT_IN = {
    "das": "loadmaster.serving.systems.das.system:ENDPOINT",
    "decima": "loadmaster.serving.systems.decima.system:ENDPOINT",
}


def find_endpoint(system: str, reference: str = "") -> Endpoint[Any, Any, Any]:
    """The endpoint of a system: that of `reference`, or a built-in one."""
    if not reference and system not in BUILT_IN:
        raise unknown_name("system", system, BUILT_IN)
    where = reference or BUILT_IN[system]
    try:
        found = resolve(where)
    except (ImportError, AttributeError, ValueError) as fault:
        raise InputError(
            f"endpoint {where!r} of system {system!r} cannot be loaded: {fault}; "
            "expected module:object"
        ) from None
    if not isinstance(found, Endpoint):
        raise InputError(f"{where!r} is no Endpoint; expected one for system {system!r}")
    return found
