"""Decoding JSON into dataclasses: unknown fields are ignored, known ones are checked."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.serving.client import responses
from loadmaster.serving.client.responses import Choice, Decision, DecodeError, History, decode
from tests.serving.client.fake_service import DECISION


def test_nested_records_are_decoded() -> None:
    decision = decode(Decision, DECISION)
    assert decision.decision == {"stage": 3, "limit": 8}
    assert decision.policy.version == "0123456789ab"
    assert decision.reason.choices["stage"] == (
        Choice("job 17, stage 3", 1.5, None, 0.75),
        Choice("job 4, stage 0", 0.5, 0.25, None),
    )
    assert decision.guard == ("bounds: job 17 from 12 to 8",)
    assert decision.shadow is None


def test_unknown_fields_are_ignored_and_missing_ones_take_their_default() -> None:
    shadow = {"decision": {"stage": 1}, "agrees": False, "policy": {"name": "new", "colour": 1}}
    newer: dict[str, Any] = {**DECISION, "carbon_g": 3, "shadow": shadow}
    del newer["guard"]
    decision = decode(Decision, newer)
    assert decision.guard == ()
    assert decision.shadow is not None
    assert decision.shadow.policy is not None
    assert (decision.shadow.agrees, decision.shadow.policy.name) == (False, "new")
    assert decode(History, {"interval_s": 10, "intervals": []}) == History(10.0, ())


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"latency_ms": "1"}, "latency_ms"),
        ({"latency_ms": True}, "latency_ms"),
        ({"source": None}, "source"),
        ({"guard": "bounds"}, "guard"),
        ({"guard": [1]}, r"guard\[0\]"),
        ({"decision": [1]}, "decision"),
        ({"policy": {"version": "1"}}, "policy is .*'name'"),
        ({"reason": {"summary": "", "choices": {"stage": [{"name": 1}]}}}, r"stage\[0\].name"),
    ],
)
def test_wrong_type_is_refused_with_its_path(changed: dict[str, Any], path: str) -> None:
    with pytest.raises(DecodeError, match=path):
        decode(Decision, {**DECISION, **changed})


NAMES = st.sampled_from(["system", "systems", "service", "lifecycle", "state", "policies"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(JSON)
def test_any_json_is_decoded_or_refused(data: Any) -> None:
    for record in (Decision, responses.Status, responses.Systems, History):
        with suppress(DecodeError):
            assert isinstance(decode(record, data), record)
