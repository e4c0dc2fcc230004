"""Logged decisions taken again: would the same policy decide the same, would another one differ?"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from loadmaster.envs.errors import InputError
from loadmaster.models.manifest import (
    pretrained_folder,
    pretrained_policies,
    read_manifest,
    visible,
)
from loadmaster.platform.systems.bundle_ref import resolve_folder
from loadmaster.serving.monitoring.log_files import DecisionRow
from loadmaster.serving.system import Endpoint, Policy, find_endpoint
from loadmaster.serving.timestamps import iso

SHOWN = 5  # differences that are kept to look at
MOST_REASONS = 50

Key = TypeVar("Key")
Made = TypeVar("Made")


class Difference(NamedTuple):
    """A decision that is another one today."""

    id: str
    time: str  # ISO
    system: str
    policy: str  # who decided then: "decima-batch 0123456789ab"
    by: str  # who did now
    then: str  # JSON
    now: str
    same_version: bool  # then somebody should look into it


@dataclass
class Outcome:
    """What came of it."""

    replayed: int = 0
    identical: int = 0
    different: int = 0
    broken: int = 0  # of these, by the very version that decided then
    shown: list[Difference] = field(default_factory=list)
    not_replayable: dict[str, int] = field(default_factory=dict)  # how often, by reason

    def compare(self, difference: Difference) -> None:
        self.replayed += 1
        if difference.then == difference.now:
            self.identical += 1
            return
        self.different += 1
        self.broken += difference.same_version
        if len(self.shown) < SHOWN:
            self.shown.append(difference)

    def record(self) -> dict[str, Any]:
        return {
            "replayed": self.replayed,
            "identical": self.identical,
            "different": self.different,
            "different_by_same_version": self.broken,
            "differences": [each._asdict() for each in self.shown],
            "not_replayable": self.not_replayable,
        }

    def leave_out(self, why: str) -> None:
        known = why in self.not_replayable or len(self.not_replayable) < MOST_REASONS
        why = why if known else "further reasons"
        self.not_replayable[why] = self.not_replayable.get(why, 0) + 1


class Decided(NamedTuple):
    """One decision of a row: the one that was acted on, or the one of the policy in shadow."""

    by_rule: bool
    policy: str
    version: str
    decision: str  # JSON
    guarded: bool  # what the policy proposed is not what is logged


def given_bundles(assignments: Iterable[str]) -> dict[str, Path]:
    """Folders by system, of `SYSTEM=FOLDER_OR_NAME`."""
    folders = {}
    for assignment in assignments:
        system, equals, spec = assignment.partition("=")
        if not equals or not system or not spec:
            raise InputError(
                f"--bundle {assignment!r} is malformed; expected SYSTEM=FOLDER_OR_NAME"
            )
        if system in folders:
            raise InputError(f"--bundle gives {system!r} twice; expected one bundle a system")
        folder = resolve_folder(spec)
        manifest = read_manifest(folder)
        if manifest.system != system:
            raise InputError(
                f"--bundle {assignment}: {manifest.name!r} is of {visible(manifest.system)!r}; "
                f"expected a bundle of {system!r}"
            )
        folders[system] = folder
    return folders


def replay_log(
    rows: Iterable[DecisionRow], given: Mapping[str, Path], on_row: Callable[[int], None]
) -> Outcome:
    """Decide every row's state again; `on_row` hears how many rows were seen."""
    outcome = Outcome()
    deciders = _Deciders(given)
    for system, folder in given.items():
        deciders.load(system, folder)  # one that somebody named is refused now, not row by row
    for number, row in enumerate(rows, start=1):
        on_row(number)
        try:
            endpoint = deciders.endpoint(row.system)
            state = endpoint.state.model_validate_json(row.state)
            decided, when = _decided(row), iso(row.time)
        except InputError as fault:
            outcome.leave_out(str(fault))
            continue
        except ValidationError as fault:
            outcome.leave_out(f"its state is refused today: {_first(fault)}")
            continue
        except (
            ValueError,
            OverflowError,
        ) as fault:  # a shadow that is no JSON, a time that is none
            outcome.leave_out(f"its record is damaged: {visible(str(fault))}")
            continue
        for each in decided:
            _again(row, when, each, state, endpoint, deciders, outcome)
    return outcome


def _again(
    row: DecisionRow,
    when: str,
    decided: Decided,
    state: Any,
    endpoint: Endpoint[Any, Any, Any],
    deciders: _Deciders,
    outcome: Outcome,
) -> None:
    if decided.guarded:
        outcome.leave_out("the guard changed the decision")
        return
    try:
        then = endpoint.decision.model_validate_json(decided.decision).model_dump_json()
        policy = deciders.find(row.system, decided)
    except InputError as fault:
        outcome.leave_out(str(fault))
        return
    except ValidationError as fault:
        outcome.leave_out(f"its decision is refused today: {_first(fault)}")
        return
    try:
        now = policy.decide(state).decision.model_dump_json()
    except Exception as fault:  # it decided then: that it fails is a finding, not our end
        now = f"fails: {type(fault).__name__}: {visible(' '.join(str(fault).split()))}"
    outcome.compare(
        Difference(
            id=row.id,
            time=when,
            system=row.system,
            policy=f"{decided.policy} {decided.version}".strip(),
            by=f"{policy.name} {policy.version}".strip(),
            then=then,
            now=now,
            same_version=policy.version == decided.version,
        )
    )


def _decided(row: DecisionRow) -> list[Decided]:
    by_rule, guarded = row.source == "fallback", bool(row.guard)
    found = [Decided(by_rule, row.policy, row.version, row.decision, guarded)]
    if row.shadow is not None:
        shadow = json.loads(row.shadow)
        try:
            name, version = (str(shadow["policy"][key]) for key in ("name", "version"))
            found.append(Decided(False, name, version, json.dumps(shadow["decision"]), False))
        except (KeyError, TypeError):
            raise InputError("its record is damaged: no policy in its shadow") from None
    return found


class _Deciders:
    """Who can decide, each loaded once."""

    def __init__(self, given: Mapping[str, Path]) -> None:
        self._given = given
        self._endpoints: dict[str, Endpoint[Any, Any, Any] | InputError] = {}
        self._policies: dict[tuple[str, str], Policy | InputError] = {}
        self._shipped: dict[tuple[str, str], Path] = {}  # by system and version
        for name in pretrained_policies():
            try:
                manifest = read_manifest(pretrained_folder() / name)
            except InputError:
                continue
            self._shipped[manifest.system, manifest.version] = pretrained_folder() / name

    def endpoint(self, system: str) -> Endpoint[Any, Any, Any]:
        return _once(self._endpoints, system, lambda: find_endpoint(system))

    def find(self, system: str, decided: Decided) -> Policy:
        """Whoever decided then, or the bundle that was given instead."""
        endpoint = self.endpoint(system)
        if decided.by_rule:
            if decided.policy not in endpoint.rules:
                raise InputError(f"no rule {visible(decided.policy)!r} is known to {system}")
            return _once(
                self._policies,
                (system, f"rule {decided.policy}"),
                lambda: endpoint.rule(decided.policy),
            )
        folder = self._given.get(system) or self._shipped.get((system, decided.version))
        if folder is None:
            raise InputError(
                f"the {system} bundle {visible(decided.policy)!r}, version "
                f"{visible(decided.version)}, is not at hand; give it by --bundle {system}=FOLDER"
            )
        return self.load(system, folder)

    def load(self, system: str, folder: Path) -> Policy:
        endpoint = self.endpoint(system)
        return _once(self._policies, (system, str(folder)), lambda: endpoint.policy(folder))


def _once(known: dict[Key, Made | InputError], key: Key, make: Callable[[], Made]) -> Made:
    """What `make` makes, the first time; that it cannot is remembered too."""
    if key not in known:
        try:
            known[key] = make()
        except InputError as fault:
            known[key] = fault
    found = known[key]
    if isinstance(found, InputError):
        raise InputError(str(found))
    return found


def _first(fault: ValidationError) -> str:
    first = fault.errors(include_input=False, include_url=False)[0]
    return visible(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}")
