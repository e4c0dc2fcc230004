"""The endpoint: validation, constraints and features of decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.serving.system import Policy, Quantity
from loadmaster.serving.systems.das.schema import DasDecision, DasState
from loadmaster.serving.systems.das.system import ENDPOINT
from tests.bundles import make_bundle
from tests.serving.systems.das.clusters import job, machine, placements, states

STATE = DasState.model_validate(
    {
        "machines": [machine("a", 2), machine("b", 2, "T4")],
        "jobs": [
            job("1", 2, 9, {"a": 1}),
            job("2", 2, 8, {"b": 1}),
            job("3", 1, 7, instances=2),
            job("4", 2, 6, gpu_type="V100"),
        ],
    }
)


def decision(wait: int, stop: tuple[str, ...] = (), **start: dict[str, int]) -> DasDecision:
    """`job3={"a": 2}`: job 3 starts with two instances on a."""
    starts = [
        {"job": name.removeprefix("job"), "placements": placements(on)}
        for name, on in start.items()
    ]
    return DasDecision.model_validate({"start": starts, "stop": stop, "wait": wait})


MOVE = decision(2, ("1", "2"), job1={"b": 1}, job4={"a": 1})


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (decision(3, ("9",)), "stop: unknown job '9'"),
        (decision(3, ("3",)), "stop: job '3' does not run"),
        (decision(4, ("1", "1")), "stop: job '1' does not run"),
        (decision(1, job9={"a": 1}), "start: unknown job '9'"),
        (decision(1, job1={"a": 1}), "start: job '1' already runs"),
        (decision(1, job3={"a": 2}), "'a' has 0 GPUs"),
        (decision(2, ("1",), job3={"a": 1}), "1 of its 2 instances placed"),
        (decision(2, ("1",), job3={"a": 1, "z": 1}), "unknown machine 'z'"),
        (decision(2, ("2",), job4={"b": 1}), "type 'V100'"),
        (decision(1, ("1",), job3={"a": 2}), "wait is 1; expected 2"),
    ],
)
def test_invalid_decisions_are_rejected(wrong: DasDecision, reason: str) -> None:
    assert reason in (ENDPOINT.validate_decision(STATE, wrong) or "")


@pytest.mark.parametrize("right", [decision(2), decision(2, ("1",), job3={"a": 2}), MOVE])
def test_valid_decisions_are_accepted(right: DasDecision) -> None:
    assert ENDPOINT.validate_decision(STATE, right) is None


def test_quantities_are_running_jobs() -> None:
    assert ENDPOINT.quantities(STATE, MOVE) == (
        Quantity("job 1", 1, 1),
        Quantity("job 2", 1, 0),
        Quantity("job 4", 0, 1),
    )


@pytest.mark.parametrize(
    ("allowed", "left"),
    [
        ({}, MOVE),
        # Job 4 may not start.
        ({"job 4": 0.0}, decision(3, ("1", "2"), job1={"b": 1})),
        # Job 2 stays, so job 1 cannot move, and job 4 does not fit.
        ({"job 2": 1.0}, decision(2)),
        # Job 1 may not run: it stops.
        ({"job 1": 0.0}, decision(3, ("1", "2"), job4={"a": 1})),
    ],
)
def test_constrain_drops_what_is_not_allowed_or_does_not_fit(
    allowed: dict[str, float], left: DasDecision
) -> None:
    assert ENDPOINT.constrain(STATE, MOVE, allowed) == left
    assert ENDPOINT.validate_decision(STATE, left) is None


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> list[Policy]:
    """Two untrained networks, one of which preempts, and all rules."""
    folder: Path = tmp_path_factory.mktemp("bundles")
    small: dict[str, Any] = {"system": "das", "width": 16, "heads": 2}
    rows = {"max_queue": 5, "history": 3}
    made = [
        make_bundle(folder / "calm", environment=rows, process=False, **small),
        make_bundle(folder / "bold", environment={**rows, "preempt": True}, **small),
    ]
    return [*map(ENDPOINT.policy, made), *map(ENDPOINT.rule, ENDPOINT.rules)]


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(state=states(), data=st.data())
def test_decisions_on_random_states_are_valid_and_can_be_constrained(
    policies: list[Policy], state: DasState, data: st.DataObject
) -> None:
    for policy in policies:
        proposal = policy.decide(state)
        found = proposal.decision
        assert ENDPOINT.validate_decision(state, found) is None
        assert proposal.explanation.summary.endswith(("wait", "waits"))
        quantities = ENDPOINT.quantities(state, found)
        held = [one for one in quantities if data.draw(st.booleans())]
        allowed = {one.name: one.current for one in held}
        cut = ENDPOINT.constrain(state, found, allowed)
        assert ENDPOINT.validate_decision(state, cut) is None
        after = {one.name: one.proposed for one in ENDPOINT.quantities(state, cut)}
        for one in held:
            assert after.get(one.name, one.current) == one.current
        assert set(cut.start) <= set(found.start)
        assert set(cut.stop) <= set(found.stop)
        if not held:
            assert cut == found


@settings(max_examples=30, deadline=None)
@given(state=states())
def test_features_give_valid_retraining_settings(state: DasState) -> None:
    found = ENDPOINT.features(state)
    assert 0 <= found["gpu_utilisation"] <= 1
    assert found["jobs_waiting"] + found["jobs_running"] == len(state.jobs)
    alike = GpuSchedulingSettings.model_validate(ENDPOINT.retraining(found))
    assert alike.arrivals == "poisson"
    assert 0.2 <= alike.offered_load <= 1.5


def test_retraining_settings_match_size_and_load() -> None:
    always = {"arrivals": "poisson", "preempt": True}
    busy = {"jobs_waiting": 30.0, "jobs_running": 70.0, "gpu_utilisation": 0.95}
    settings = {"cluster": "medium", "load": 1.44, "max_queue": 128, **always}
    assert ENDPOINT.retraining({"gpus": 110.0, "gpus_per_job": 1.8, **busy}) == settings
    settings = {"cluster": "small", "load": 0.3, "max_queue": 64, **always}
    assert ENDPOINT.retraining({"gpus": 32.0, "gpu_utilisation": 0.3}) == settings
