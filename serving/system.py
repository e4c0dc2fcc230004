"""Interface between a system and the decision service: `Endpoint`, and how one is found by name.

The service is generic over systems. A new system implements `Endpoint`; guard, fallback, log,
monitor, console and clients need no change. Systems that are not built in are given as
"module:object".
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
)

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from loadmaster.envs.errors import InputError
from loadmaster.envs.registry import find_system, resolve, systems
from loadmaster.models.manifest import pretrained_folder, pretrained_policies, read_manifest
from loadmaster.models.policy import Proposal


class Record(BaseModel):
    """Base of request schemas: unknown fields, NaN and infinity are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class State(Record):
    """Input of a decision. Incompatible changes get a new version number."""

    # Whether the records inside may be structs when a request is read (`decisions/struct_reader`).
    # They have the same fields and no methods, and are read in a fraction of the time.
    as_structs: ClassVar[bool] = False

    version: int = Field(default=1, ge=1, le=1, json_schema_extra={"const": 1})

    def check(self) -> None:
        """Raise a `field_error` if fields contradict each other."""

    @model_validator(mode="after")
    def run_check(self) -> Self:
        self.check()
        return self


StateType = TypeVar("StateType", bound=State)
DecisionType = TypeVar("DecisionType", bound=Record)
OutcomeType = TypeVar("OutcomeType", bound=Record)


def field_error(place: tuple[str | int, ...], message: str) -> ValidationError:
    """Validation error at a field inside the record whose validator raises it."""
    # The message is passed as a value, since it may quote braces from the request.
    fault = PydanticCustomError("wrong_field", "{message}", {"message": message})
    details = InitErrorDetails(type=fault, loc=place, input=None)
    return ValidationError.from_exception_data("state", [details])


class Profile(Record):
    """An application's profile: what its owner requires of it, and how much is at stake.

    `slo` and `utilisation` are in the words of the system, which derives a reward from them
    (`Endpoint.profile_reward`); `reward` replaces that.
    """

    slo: float | None = Field(default=None, gt=0, description="service level objective")
    utilisation: dict[str, Annotated[float, Field(gt=0, le=1)]] = Field(
        default_factory=dict, max_length=16, description="targets, by resource"
    )
    bootstrap: bool | None = Field(
        default=None,
        description="whether the rule acts for a new application; null: as configured",
    )
    stakes: Literal["normal", "high"] = Field(
        default="normal", description="high: the rule acts whenever the policy is not proven"
    )
    reward: float | None = Field(default=None, description="required of a policy before it acts")


class Quantity(NamedTuple):
    """A number that a decision sets, for the guard."""

    name: str  # stable across decisions: "job 17"
    current: float  # value in the state
    proposed: float
    # Work that waits for what the quantity limits, where the state has it: the time in which as
    # much arrives, and the part of what arrives that is added to it (below 0: it shrinks).
    backlog_s: float = 0.0
    backlog_growth: float = 0.0
    # What it is a number of, one of the endpoint's `kinds`; "": the only or main kind. Limits are
    # by kind, and sums are within one.
    kind: str = ""


class RecordedInput(NamedTuple):
    """Logged states as input of a retraining; a setting that is the name of a file refers to it."""

    settings: Mapping[str, Any]  # those of `loadmaster train --set`: {"environment.data": "a.csv"}
    files: Mapping[str, str]  # content by name


class Policy(Protocol):
    """Decides about states. Called by one thread at a time."""

    @property
    def name(self) -> str: ...  # of the bundle, or of the rule
    @property
    def version(self) -> str: ...  # of the bundle: the first 12 digits of its weights' sha256

    def decide(self, state: Any) -> Proposal: ...


class Endpoint(ABC, Generic[StateType, DecisionType, OutcomeType]):
    """Schemas, policy and rules of one system. Stateless; one instance per process."""

    system: ClassVar[str]
    summary: ClassVar[str]  # one line for the list of systems
    pretrained: ClassVar[str]  # bundle that is served by default
    rules: ClassVar[tuple[str, ...]]  # heuristics for the fallback, the best one first
    state: type[StateType]
    decision: type[DecisionType]
    outcome: type[OutcomeType]  # content of feedback
    # Field of states, and of outcomes if they have it, that names the tenant of a request that
    # names none; "": there is none.
    tenant_field: ClassVar[str] = ""
    kinds: ClassVar[tuple[str, ...]] = ()  # of quantities that have one

    @abstractmethod
    def examples(self) -> Mapping[str, StateType]:
        """States by name, at least "small" and "large"; for OpenAPI, benchmarks and warm-up."""

    def warm_up(self, *policies: Policy) -> None:
        """Let the policies decide on every example, which compiles what was never compiled."""
        for policy, state in product(policies, self.examples().values()):
            policy.decide(state)

    @abstractmethod
    def policy(self, folder: Path) -> Policy:
        """Load the bundle in a folder; raises InputError if it cannot be used."""

    @abstractmethod
    def rule(self, name: str) -> Policy:
        """Return the heuristic of that name, one of `rules`."""

    @abstractmethod
    def quantities(self, state: StateType, decision: DecisionType) -> tuple[Quantity, ...]:
        """Return what the decision sets, for the guard."""

    @abstractmethod
    def constrain(
        self, state: StateType, decision: DecisionType, allowed: Mapping[str, float]
    ) -> DecisionType:
        """Return the decision with the quantities in `allowed` set to those values.

        An allowed value lies between `current` and `proposed`, or beyond `current`. Nothing else
        changes.
        """

    @abstractmethod
    def validate_decision(self, state: StateType, decision: DecisionType) -> str | None:
        """Return why the decision cannot be carried out in the state; None if it can."""

    def agreement(self, decision: DecisionType, other: DecisionType) -> float:
        """How close two decisions about one state are, from 0 to 1; by default only if equal.

        A system that sets quantities compares those.
        """
        return float(decision == other)

    @abstractmethod
    def features(self, state: StateType) -> Mapping[str, float]:
        """Summary figures of the state, monitored for drift: load, queue, sizes."""

    @abstractmethod
    def reward(self, outcome: OutcomeType) -> float:
        """Reward of an outcome; higher is better."""

    def profile_reward(self, profile: Profile) -> float | None:
        """Reward of an application that keeps to its profile; None: the profile implies none."""
        return None

    def complete(self, profile: Profile) -> Profile:
        """Return the profile with the reward that it implies, unless it gives one."""
        if profile.reward is not None:
            return profile
        return profile.model_copy(update={"reward": self.profile_reward(profile)})

    @abstractmethod
    def retraining(self, features: Mapping[str, float]) -> Mapping[str, Any]:
        """Environment settings for retraining, from the means of the observed `features`."""

    def recorded(self, states: Iterable[tuple[float, StateType]]) -> RecordedInput | None:
        """Input of a retraining from the logged states of a tenant, the oldest first.

        `states` has times and states. For a system whose retraining needs more than what
        `retraining` returns, which it adds to. None: it needs no more, or the log is too short.
        """
        return None


def default_systems() -> tuple[str, ...]:
    """The registered systems with an endpoint; of the built-in ones those that ship a policy."""
    folder = pretrained_folder()
    shipped = {read_manifest(folder / name).system for name in pretrained_policies()}
    return tuple(
        name
        for name, one in systems().items()
        if one.available and (one.package or name in shipped) and one.has("endpoint")
    )


def find_endpoint(system: str, reference: str = "") -> Endpoint[Any, Any, Any]:
    """Return the endpoint at `reference` ("module:object"), or that of the registered system."""
    where = reference or f"endpoint of system {system!r}"
    try:
        found = resolve(reference) if reference else find_system(system).load("endpoint")
    except InputError:
        raise
    except (ImportError, AttributeError, ValueError) as fault:
        raise InputError(f"{where} cannot be loaded: {fault}; expected module:object") from None
    if not isinstance(found, Endpoint):
        raise InputError(f"{where} is no Endpoint; expected one for system {system!r}")
    return found
