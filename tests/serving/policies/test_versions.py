"""Policy slots: routing, promotion, rollback and their record."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadmaster.serving.policies.store import Version
from loadmaster.serving.policies.versions import PolicySlots, Routing, restore_slots


def version(name: str, folder: Path = Path("/")) -> Version:
    return Version(name, f"{name}-1", str(folder), "then")


A, B, C = (version(name) for name in "abc")


@pytest.mark.parametrize(
    ("slots", "mode", "rules_act", "routing"),
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
def test_routing(slots: PolicySlots, mode: str, rules_act: bool, routing: Routing) -> None:
    assert slots.cast(mode, rules_act) == routing


def test_promotion_and_rollback_move_versions() -> None:
    promoted = PolicySlots(A, shadow=B).promoted("now")
    assert promoted == PolicySlots(replace(B, since="now"), previous=A)
    back = promoted.rolled_back("later")
    assert back == PolicySlots(replace(A, since="later"), previous=promoted.serving)
    assert back.versions == {"a-1", "b-1"}
    assert PolicySlots(B, previous=A).serving_now(B, "now").previous == A  # it served already
    assert PolicySlots(A, shadow=C).serving_now(B, "now").shadow == C


def test_slots_are_restored_from_their_record(tmp_path: Path) -> None:
    versions = [version(name, tmp_path) for name in "abc"]
    slots = PolicySlots(*versions, paused="night")
    record = json.loads(json.dumps(slots.record()))
    assert restore_slots(record, A) == slots
    tmp_path.rmdir()
    assert restore_slots(record, A) == PolicySlots(A, paused="night")


@pytest.mark.parametrize(
    "record",
    [
        None,
        "slots",
        {},
        {"serving": "a"},
        {"serving": {"name": "a"}},
        {"serving": {"name": "a", "version": "1", "folder": 3, "since": ""}},
        {"serving": {"name": "a", "version": "1", "folder": "/a\0b", "since": ""}},
        {"shadow": 7, "previous": [], "paused": 3},
    ],
)
def test_damaged_record_gives_the_configured_version(record: Any) -> None:
    assert restore_slots(record, A) == PolicySlots(A)
