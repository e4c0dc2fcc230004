"""SURE behind HTTP: notes, guard and shadow with quantities of a streaming job."""

import copy
from typing import Any

import pytest

from loadmaster.serving.decisions.guard import BACKLOG, Guard, GuardSettings
from loadmaster.serving.http import schemas
from loadmaster.serving.system import find_endpoint
from loadmaster.serving.systems.sure.schema import SureDecision, SureState
from tests.serving.conftest import LocalService


def decide(here: LocalService, state: Any, **options: Any) -> Any:
    answer = here.request("POST", "/v1/sure/decide", {"state": state, **options})
    assert answer.status == 200, answer
    schemas.DecisionResponse.model_validate(answer.json)
    return answer.json


@pytest.fixture(scope="module")
def small(everything: LocalService) -> Any:
    """A state in which all tasks have more instances than they need."""
    return everything.state("sure")


def with_backlog(state: Any, minutes: float) -> Any:
    """The same with so many minutes of the load pending at the sources."""
    state = copy.deepcopy(state)
    tables = state["snapshots"]
    for arrived, pending in zip(tables["records_in_per_s"], tables["pending_records"], strict=True):
        for place, task in enumerate(state["tasks"]):
            if task["source"]:
                pending[place] = 60 * minutes * arrived[place]
    return state


def test_falls_are_held_while_a_backlog_lasts(everything: LocalService, small: Any) -> None:
    now = small["snapshots"]["parallelism"][-1]
    free = decide(everything, small, tenant="free")
    assert (free["source"], free["guard"]) == ("policy", [])
    assert free["decision"]["act"]
    assert sum(free["decision"]["parallelism"].values()) < sum(now)
    endpoint, guard = find_endpoint("sure"), Guard(GuardSettings())
    state = SureState.model_validate(with_backlog(small, 6))
    decision = SureDecision.model_validate(free["decision"])
    quantities = endpoint.quantities(state, decision)
    result = guard.apply(quantities, 0.0)
    falling = [one.name for one in quantities if one.proposed < one.current]
    assert falling
    assert list(result.allowed) == falling
    assert set(result.kinds) == {BACKLOG}
    held = endpoint.constrain(state, decision, result.allowed)
    assert not held.act
    assert list(held.parallelism.values()) == now


def test_shadow_agreement_is_by_instances(everything: LocalService, small: Any) -> None:
    found = decide(everything, small, mode="shadow", tenant="shadowed")
    ours, other = found["decision"]["parallelism"], found["shadow"]["decision"]["parallelism"]
    assert ours != other
    shares = [min(ours[name], other[name]) / max(ours[name], other[name]) for name in ours]
    assert found["shadow"]["agreement"] == pytest.approx(sum(shares) / len(shares))
    assert found["shadow"]["agrees"] is False


def test_missing_values_are_noted(everything: LocalService, small: Any) -> None:
    state = copy.deepcopy(small)
    for name, table in state["snapshots"].items():
        state["snapshots"][name] = table[-20:]
    for row in state["snapshots"]["busy_ms_per_s"]:
        row[0] = None
    assert decide(everything, small, tenant="noted")["reason"]["notes"] == []
    busy, short = decide(everything, state, tenant="noted")["reason"]["notes"]
    assert state["tasks"][0]["name"] in busy
    assert short.startswith("20 snapshots")


def test_feedback_is_rewarded_as_in_the_environment(everything: LocalService) -> None:
    outcome = {"job": "small-1", "latency_s": 60, "utilisation": 0.6}
    answer = everything.request("POST", "/v1/sure/feedback", {"outcome": outcome})
    assert answer.json["reward"] == pytest.approx(-0.7 + 0.3 * 0.6)
