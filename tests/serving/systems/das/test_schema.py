"""Validation of states: errors name the wrong field."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from pydantic import ValidationError

from loadmaster.serving.systems.das.schema import DasOutcome, DasState
from loadmaster.serving.systems.das.system import ENDPOINT
from tests.serving.systems.das.clusters import job, machine

GOOD: dict[str, Any] = {
    "machines": [machine("a"), machine("b", gpu="T4")],
    "jobs": [job("1", 1, 900, {"a": 2, "b": 1}, instances=3, cpus=2), job("2", 0.5)],
    "history": [{"age_s": 5, "speeds": {"a": 1}}, {"age_s": 9, "speeds": {}}],
}
Path = tuple[str | int, ...]


def with_change(path: Path, value: Any) -> dict[str, Any]:
    state = copy.deepcopy(GOOD)
    inside: Any = state
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return state


def rejected(state: Any) -> tuple[Path, str]:
    with pytest.raises(ValidationError) as caught:
        DasState.model_validate_json(state if isinstance(state, str) else json.dumps(state))
    first = caught.value.errors()[0]
    return first["loc"], first["msg"]


def test_valid_state_round_trips() -> None:
    state = DasState.model_validate(GOOD)
    assert DasState.model_validate_json(state.model_dump_json()) == state


PLACED = ("jobs", 0, "placements")


@pytest.mark.parametrize(
    ("path", "value", "where", "words"),
    [
        (("machines",), [], ("machines",), "at least 1"),
        (("machines", 1, "name"), "a", ("machines", 1, "name"), "'a' is listed twice"),
        (("machines", 1, "gpu"), "T5", ("machines", 1, "gpu"), "unknown GPU type 'T5'"),
        (("machines", 1, "gpus"), 0.5, ("machines", 1, "gpus"), "integer"),
        (("jobs", 1, "id"), "1", ("jobs", 1, "id"), "'1' is listed twice"),
        (("jobs", 1, "gpus"), 0, ("jobs", 1, "gpus"), "0.01"),
        (("jobs", 1, "gpu_type"), "{T4}", ("jobs", 1, "gpu_type"), "GPU type '{T4}'; expected"),
        (("jobs", 1, "running_s"), 7, ("jobs", 1, "running_s"), "so it waits"),
        (("jobs", 1, "speed"), 1, ("jobs", 1, "speed"), "so it waits"),
        (("jobs", 0, "instances"), 4, PLACED, "3 of its 4 instances placed"),
        ((*PLACED, 1, "machine"), "z", (*PLACED, 1, "machine"), "unknown machine 'z'"),
        ((*PLACED, 1, "machine"), "a", (*PLACED, 1, "machine"), "machine 'a' twice"),
        (("jobs", 0, "gpus"), 2.5, (*PLACED, 0, "machine"), "4 GPUs and 32 cores left"),
        (("jobs", 0, "cpus"), 20, (*PLACED, 0, "machine"), "would take 2 and 40"),
        (("jobs", 0, "gpu_type"), "V100", (*PLACED, 1, "machine"), "needs GPUs of type 'V100'"),
        (("history", 1, "age_s"), 4, ("history", 1, "age_s"), "latest first"),
        (("running_order",), ["1", "2"], ("running_order", 1), "'2' is not a running job"),
        (("running_order",), ["1", "1"], ("running_order", 1), "'1' is listed twice"),
        (("ask",), "everything", ("ask",), "'event', 'placing', 'reconsidering'"),
        (("version",), 2, ("version",), "1"),
        (("jobs", 1, "colour"), "red", ("jobs", 1, "colour"), "not permitted"),
    ],
)
def test_invalid_field_is_rejected(path: Path, value: Any, where: Path, words: str) -> None:
    loc, message = rejected(with_change(path, value))
    assert loc == where
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", '"7x"', "null", "[]", "{}"])
def test_numbers_must_be_finite(number: str) -> None:
    text = json.dumps(with_change(("jobs", 1, "age_s"), 12345)).replace("12345", number)
    assert rejected(text)[0] == ("jobs", 1, "age_s")


def test_too_large_states_are_rejected() -> None:
    machines = [machine(str(n)) for n in range(2001)]
    assert rejected({"machines": machines, "jobs": []})[0] == ("machines",)
    jobs = [job(str(n)) for n in range(5001)]
    assert rejected({"machines": machines[:1], "jobs": jobs})[0] == ("jobs",)
    gangs = [job(str(n), 0.01, instances=2000) for n in range(501)]
    loc, message = rejected({"machines": machines[:2000], "jobs": gangs})
    assert loc == ("jobs",)
    assert "1,002,000 places" in message


@pytest.mark.slow  # compiles the rules
def test_job_larger_than_cluster_is_left_waiting() -> None:
    state = DasState.model_validate(with_change(("jobs", 1, "gpus"), 500))
    for name in ENDPOINT.rules:
        decision = ENDPOINT.rule(name).decide(state).decision
        assert (decision.start, decision.stop, decision.wait) == ((), (), 1)


def test_reward_decreases_with_completion_time() -> None:
    rewards = [ENDPOINT.reward(DasOutcome(job="1", completion_s=s)) for s in (0, 60, 600, 6000)]
    assert rewards == sorted(rewards, reverse=True)
    assert (rewards[0], rewards[3] > -5) == (0, True)
