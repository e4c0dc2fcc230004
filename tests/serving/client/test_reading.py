"""JSON into dataclasses: tolerant of what is new, exact about what is known."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.serving.client.decode import UnreadableError, read
from loadmaster.serving.client.responses import Choice, Decision, History, Status, Systems
from tests.serving.client.fake_service import DECISION


def test_nested_records() -> None:
    decision = read(Decision, DECISION)
    assert decision.decision == {"stage": 3, "limit": 8}
    assert decision.policy.version == "0123456789ab"
    assert decision.reason.choices["stage"] == (
        Choice("job 17, stage 3", 1.5, None, 0.75),
        Choice("job 4, stage 0", 0.5, 0.25, None),
    )
    assert decision.guard == ("bounds: job 17 from 12 to 8",)
    assert decision.shadow is None


def test_unknown_fields_are_passed_over_and_missing_ones_take_their_default() -> None:
    shadow = {"decision": {"stage": 1}, "agrees": False, "policy": {"name": "new", "colour": 1}}
    newer: dict[str, Any] = {**DECISION, "carbon_g": 3, "shadow": shadow}
    del newer["guard"]
    decision = read(Decision, newer)
    assert decision.guard == ()
    assert decision.shadow is not None
    assert decision.shadow.policy is not None
    assert (decision.shadow.agrees, decision.shadow.policy.name) == (False, "new")
    assert read(History, {"interval_s": 10, "intervals": []}) == History(10.0, ())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"latency_ms": "1"}, "latency_ms is '1'; expected a number"),
        ({"latency_ms": True}, "latency_ms is True; expected a number"),
        ({"source": None}, "source is None; expected a text"),
        ({"guard": "bounds"}, "guard is 'bounds'; expected a list"),
        ({"guard": [1]}, r"guard\[0\] is 1; expected a text"),
        ({"decision": [1]}, r"decision is \[1\]; expected an object"),
        ({"policy": {"version": "1"}}, "policy is an object with version; expected 'name' in it"),
        ({"reason": {"summary": "", "choices": {"stage": [{"name": 1}]}}}, r"stage\[0\].name is 1"),
    ],
)
def test_wrong_types_are_named(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(UnreadableError, match=said):
        read(Decision, {**DECISION, **changed})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["system", "systems", "service", "lifecycle", "state", "policies"])
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_read_or_refused(data: Any) -> None:
    for record in (Decision, Status, Systems, History):
        with suppress(UnreadableError):
            assert isinstance(read(record, data), record)
