"""Replay of a decision log: decide logged states again and compare the decisions."""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from loadmaster.envs.errors import InputError
from loadmaster.models import manifest as manifests
from loadmaster.models.manifest import read_manifest, visible
from loadmaster.platform.systems.bundle_ref import resolve_folder
from loadmaster.serving.decisions.policy_memory import decide_with
from loadmaster.serving.decisions.request import iso
from loadmaster.serving.monitoring.log_files import DecisionRow
from loadmaster.serving.system import Endpoint, Policy, find_endpoint

SHOWN = 5  # differences kept for the report
MOST_REASONS = 50

Made = TypeVar("Made")


class ReplayedDecision(NamedTuple):
    """A logged decision and the one made now."""

    id: str
    time: str  # ISO
    system: str
    policy: str  # that decided then: "decima-batch 0123456789ab"
    by: str  # that decided now
    then: str  # JSON
    now: str
    same_version: bool


@dataclass
class LogReplay:
    """Counts of a replayed log, and the first differences."""

    replayed: int = 0
    identical: int = 0
    different: int = 0
    broken: int = 0  # differences though the policy's version is the same
    shown: list[ReplayedDecision] = field(default_factory=list)
    not_replayable: dict[str, int] = field(default_factory=dict)  # reason -> count

    def add(self, decision: ReplayedDecision) -> None:
        self.replayed += 1
        if decision.then == decision.now:
            self.identical += 1
            return
        self.different += 1
        self.broken += decision.same_version
        if len(self.shown) < SHOWN:
            self.shown.append(decision)

    def record(self) -> dict[str, Any]:
        return {
            "replayed": self.replayed,
            "identical": self.identical,
            "different": self.different,
            "different_by_same_version": self.broken,
            "differences": [each._asdict() for each in self.shown],
            "not_replayable": self.not_replayable,
        }

    def skip(self, reason: str) -> None:
        known = reason in self.not_replayable or len(self.not_replayable) < MOST_REASONS
        reason = reason if known else "further reasons"
        self.not_replayable[reason] = self.not_replayable.get(reason, 0) + 1


class LoggedDecision(NamedTuple):
    """One decision of a row: the active one or the shadow's."""

    by_rule: bool
    policy: str
    version: str
    decision: str  # JSON
    guarded: bool  # the guard changed it: the policy's own decision was not logged


def given_bundles(assignments: Iterable[str]) -> dict[str, Path]:
    """Bundle folders by system, from `SYSTEM=FOLDER_OR_NAME`."""
    folders = {}
    for given in assignments:
        system, _, spec = given.partition("=")
        if not system or not spec:
            raise InputError(f"--bundle {given!r} is malformed; expected SYSTEM=FOLDER_OR_NAME")
        if system in folders:
            raise InputError(f"--bundle gives {system!r} twice; expected one bundle a system")
        folder = resolve_folder(spec)
        manifest = read_manifest(folder)
        if manifest.system != system:
            raise InputError(
                f"--bundle {given}: {manifest.name!r} is of {visible(manifest.system)!r}; "
                f"expected a bundle of {system!r}"
            )
        folders[system] = folder
    return folders


def replay_log(
    rows: Iterable[DecisionRow], given: Mapping[str, Path], on_row: Callable[[int], None]
) -> LogReplay:
    """Decide every row's state again; `on_row` is called with the number of rows read."""
    replay, policies = LogReplay(), _PolicyCache(given)
    for system, folder in given.items():
        policies.load(system, folder)  # a faulty bundle raises here, not row by row
    for number, row in enumerate(rows, start=1):
        on_row(number)
        try:
            endpoint = policies.endpoint(row.system)
            state = _read(endpoint.state, "state", row.state)
            decisions, time = _decisions(row), iso(row.time)
        except InputError as fault:
            replay.skip(str(fault))
            continue
        except (ValueError, OverflowError) as fault:  # malformed shadow or time
            replay.skip(f"its record is damaged: {visible(str(fault))}")
            continue
        for logged in decisions:
            try:
                if logged.guarded:
                    raise InputError("the guard changed the decision")
                then = _read(endpoint.decision, "decision", logged.decision).model_dump_json()
                policy = policies.find(row.system, logged)
            except InputError as fault:
                replay.skip(str(fault))
                continue
            replay.add(
                ReplayedDecision(
                    id=row.id,
                    time=time,
                    system=row.system,
                    policy=f"{logged.policy} {logged.version}".strip(),
                    by=f"{policy.name} {policy.version}".strip(),
                    then=then,
                    now=_decide(policy, state, row.memory or ""),
                    same_version=policy.version == logged.version,
                )
            )
    return replay


def _read(model: type[BaseModel], what: str, text: str) -> BaseModel:
    """Validate logged JSON by today's schema."""
    try:
        return model.model_validate_json(text)
    except ValidationError as fault:
        first = fault.errors(include_input=False, include_url=False)[0]
        error = visible(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
        raise InputError(f"its {what} is refused today: {error}") from None


def _decide(policy: Policy, state: Any, memory: str) -> str:
    """The decision in JSON. A failure is a difference: the policy did decide then."""
    try:
        return str(decide_with(policy, state, memory).decision.model_dump_json())
    except Exception as fault:
        return f"fails: {type(fault).__name__}: {visible(' '.join(str(fault).split()))}"


def _decisions(row: DecisionRow) -> list[LoggedDecision]:
    by_rule, guarded = row.source == "fallback", bool(row.guard)
    found = [LoggedDecision(by_rule, row.policy, row.version, row.decision, guarded)]
    if row.shadow is not None:
        shadow = json.loads(row.shadow)
        try:
            name, version = (str(shadow["policy"][key]) for key in ("name", "version"))
            decision = json.dumps(shadow["decision"])
        except (KeyError, TypeError):
            raise InputError("its record is damaged: no policy in its shadow") from None
        found.append(LoggedDecision(False, name, version, decision, False))
    return found


class _PolicyCache:
    """Endpoints, rules and bundles, each loaded once; failures are kept as well."""

    def __init__(self, given: Mapping[str, Path]) -> None:
        self._given = given
        self._known: dict[tuple[str, ...], Any] = {}
        self._pretrained: dict[tuple[str, str], Path] = {}  # by system and version
        for name in manifests.pretrained_policies():
            folder = manifests.pretrained_folder() / name
            with suppress(InputError):
                manifest = read_manifest(folder)
                self._pretrained[manifest.system, manifest.version] = folder

    def endpoint(self, system: str) -> Endpoint[Any, Any, Any]:
        return self._once(("endpoint", system), lambda: find_endpoint(system))

    def find(self, system: str, logged: LoggedDecision) -> Policy:
        """The rule or bundle of a logged decision, or the bundle given instead."""
        if logged.by_rule:
            endpoint, rule = self.endpoint(system), logged.policy
            if rule not in endpoint.rules:
                raise InputError(f"no rule {visible(rule)!r} is known to {system}")
            return self._once(("rule", system, rule), lambda: endpoint.rule(rule))
        folder = self._given.get(system) or self._pretrained.get((system, logged.version))
        if folder is None:
            raise InputError(
                f"the {system} bundle {visible(logged.policy)!r}, version "
                f"{visible(logged.version)}, is not at hand; give it by --bundle {system}=FOLDER"
            )
        return self.load(system, folder)

    def load(self, system: str, folder: Path) -> Policy:
        endpoint = self.endpoint(system)
        return self._once(("bundle", system, str(folder)), lambda: endpoint.policy(folder))

    def _once(self, key: tuple[str, ...], make: Callable[[], Made]) -> Made:
        """Cache the result of `make`, or its InputError."""
        if key not in self._known:
            try:
                self._known[key] = make()
            except InputError as fault:
                self._known[key] = fault
        found: Made | InputError = self._known[key]
        if isinstance(found, InputError):
            raise InputError(str(found))
        return found
