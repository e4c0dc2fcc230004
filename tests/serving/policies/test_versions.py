"""Who acts and who watches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadmaster.serving.policies.store import Version
from loadmaster.serving.policies.versions import PolicySlots, Routing, roles_from


def version(name: str, folder: Path = Path("/")) -> Version:
    return Version(name, f"{name}-1", str(folder), "then")


A, B, C = (version(name) for name in "abc")


@pytest.mark.parametrize(
    ("roles", "mode", "rules_act", "casting"),
    [
        (PolicySlots(A), "active", False, Routing(A, None, None)),
        (PolicySlots(A, shadow=B), "active", False, Routing(A, None, B)),
        (PolicySlots(A, shadow=B), "shadow", False, Routing(None, "shadow", A)),
        (PolicySlots(A, shadow=B), "active", True, Routing(None, "lifecycle", B)),
        (PolicySlots(A), "active", True, Routing(None, "lifecycle", A)),
        (PolicySlots(A, shadow=B, paused="night"), "active", False, Routing(None, "paused", None)),
        (PolicySlots(A, shadow=B, paused="night"), "shadow", True, Routing(None, "paused", None)),
    ],
)
def test_the_parts_in_a_decision(
    roles: PolicySlots, mode: str, rules_act: bool, casting: Routing
) -> None:
    assert roles.cast(mode, rules_act) == casting


def test_who_acts_and_why() -> None:
    assert PolicySlots(A).acts(False) == ("policy", "the bundle a a-1 serves")
    assert PolicySlots(A).acts(True)[0] == "fallback"
    assert PolicySlots(A, paused="night").acts(False) == ("fallback", "paused: night")


def test_promotion_and_back() -> None:
    roles = PolicySlots(A, shadow=B).promoted("now")
    assert (roles.serving.name, roles.serving.since) == ("b", "now")
    assert (roles.shadow, roles.previous) == (None, A)
    back = roles.rolled_back("later")
    assert (back.serving.name, back.serving.since) == ("a", "later")
    assert back.previous is not None
    assert back.previous.name == "b"
    assert back.refused == {"b-1"}
    assert back.versions == {"a-1", "b-1"}


def test_the_one_that_serves_already() -> None:
    roles = PolicySlots(B, previous=A).serving_now(B, "now")
    assert roles.previous == A, "what was there before is not lost"
    assert PolicySlots(A, shadow=C).serving_now(B, "now").shadow == C
    assert PolicySlots(A, shadow=B).serving_now(B, "now").shadow is None


def test_pausing_changes_nobodys_place() -> None:
    roles = PolicySlots(A, shadow=B, previous=C)
    assert roles.with_pause("x").with_pause(None) == roles
    assert roles.with_shadow(None).shadow is None


def test_they_are_written_down_and_read_again(tmp_path: Path) -> None:
    places = [version(name, tmp_path) for name in "abc"]
    roles = PolicySlots(*places, paused="night", refused=frozenset({"x"}))
    record = json.loads(json.dumps(roles.record()))
    assert roles_from(record, A) == roles


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        "roles",
        {},
        {"serving": None},
        {"serving": "a"},
        {"serving": {"name": "a"}},
        {"serving": {"name": "a", "version": "1", "folder": "/nowhere", "since": ""}},
        {"serving": {"name": "a", "version": "1", "folder": 3, "since": ""}},
        {"serving": {"name": "a", "version": "1", "folder": "/a\0b", "since": ""}},
        {"shadow": 7, "previous": [], "paused": 3, "refused": 5},
        {"refused": [3, None, {}]},
    ],
)
def test_what_cannot_be_read_is_left_out(record: Any) -> None:
    assert roles_from(record, A) == PolicySlots(A)
