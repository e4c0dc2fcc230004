"""Validation of states: the field and reason of every refusal."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from pydantic import ValidationError

from loadmaster.serving.systems.decima import snapshot
from loadmaster.serving.systems.decima.examples import examples
from loadmaster.serving.systems.decima.records import EXECUTORS_MAX
from loadmaster.serving.systems.decima.schema import EXAMPLE, DecimaOutcome, DecimaState

Change = dict[tuple[str | int, ...], Any]


def changed(changes: Change) -> dict[str, Any]:
    """The example with changed values."""
    state: Any = copy.deepcopy(EXAMPLE)
    for where, value in changes.items():
        place = state
        for step in where[:-1]:
            place = place[step]
        place[where[-1]] = value
    return dict(state)


def fault_of(state: Any) -> tuple[tuple[str | int, ...], str]:
    """Location and message of the error, the same for JSON and a mapping."""
    with pytest.raises(ValidationError) as as_mapping:
        DecimaState.model_validate(state)
    with pytest.raises(ValidationError) as as_text:
        DecimaState.model_validate_json(json.dumps(state))
    first, again = as_mapping.value.errors()[0], as_text.value.errors()[0]
    assert (first["loc"], first["msg"]) == (again["loc"], again["msg"])
    return first["loc"], first["msg"]


JOIN = ("jobs", 0, "stages", 1)
SCAN = ("jobs", 1, "stages", 0)
SUM = ("jobs", 1, "stages", 1)

INCONSISTENT: list[tuple[Change, tuple[str | int, ...], str]] = [
    ({("jobs", 1, "id"): "daily-report"}, ("jobs", 1, "id"), "ids that differ"),
    ({(*SUM, "id"): "scan", (*SUM, "parents"): []}, (*SUM, "id"), "ids that differ"),
    ({(*JOIN, "parents"): ["scan"]}, (*JOIN, "parents", 0), "no stage of its job"),
    ({(*JOIN, "parents"): ["read", "read"]}, (*JOIN, "parents"), "twice"),
    ({(*SUM, "parents"): ["sum"]}, (*SUM, "parents"), "its own ancestor"),
    ({(*SCAN, "parents"): ["sum"]}, (*SCAN, "parents"), "its own ancestor"),
    ({(*SCAN, "started"): 21}, (*SCAN, "started"), "at most the 20 tasks"),
    ({(*SCAN, "finished"): 8}, (*SCAN, "finished"), "at most 7 started"),
    ({(*SUM, "started"): 1}, (*SUM, "started"), "before its parents are finished"),
    ({(*JOIN, "started"): 2, (*JOIN, "finished"): 2}, ("jobs", 0, "stages"), "all finished"),
    ({("executors", 0, "free"): 9}, ("executors", 0, "free"), "as many as there are"),
    ({("executors", 0, "free"): 0}, ("executors", 0, "free"), "at least one"),
    ({("executors", 0, "count"): 6}, ("executors",), "expected at least 7"),
    ({("source",): {"job": "x"}}, ("source", "job"), "no job of this state"),
    ({("source",): {"stage": "scan"}}, ("source", "stage"), "source.job beside it"),
    ({("source", "stage"): "scan"}, ("source", "stage"), "no stage of that job"),
    ({("jobs", 1, "executors"): 3}, ("jobs", 1, "executors"), "at least 4"),
    ({("jobs", 0, "executors"): 2}, ("jobs", 0, "executors"), "at least 3"),
    ({("jobs", 1, "promised"): 1}, ("jobs", 1, "promised"), "promised to its stages"),
    ({("jobs", 1, "promised"): 2, (*SUM, "promised"): 2}, ("jobs", 1, "promised"), "at most 8 in"),
]


@pytest.mark.parametrize(("changes", "where", "words"), INCONSISTENT)
def test_inconsistent_states_are_refused_by_field(
    changes: Change, where: tuple[str | int, ...], words: str
) -> None:
    found, why = fault_of(changed(changes))
    assert found == where
    assert words in why
    assert "\n" not in why


OUT_OF_BOUNDS: list[tuple[Change, tuple[str | int, ...]]] = [
    ({("version",): 2}, ("version",)),
    ({("jobs",): []}, ("jobs",)),
    ({("executors",): []}, ("executors",)),
    ({("executors", 0, "count"): EXECUTORS_MAX + 1}, ("executors", 0, "count")),
    ({("jobs", 0, "stages"): []}, ("jobs", 0, "stages")),
    ({("jobs", 0, "age_s"): -1}, ("jobs", 0, "age_s")),
    ({("jobs", 0, "id"): ""}, ("jobs", 0, "id")),
    ({("jobs", 0, "colour"): "red"}, ("jobs", 0, "colour")),
    ({(*SCAN, "tasks"): 0}, (*SCAN, "tasks")),
    ({(*SCAN, "tasks"): 2.5}, (*SCAN, "tasks")),
    ({(*SCAN, "task_ms"): float("nan")}, (*SCAN, "task_ms")),
    ({(*SCAN, "task_ms"): float("inf")}, (*SCAN, "task_ms")),
    ({(*SCAN, "task_ms"): "long"}, (*SCAN, "task_ms")),
    ({("ask",): "everything"}, ("ask",)),
]


@pytest.mark.parametrize(("changes", "where"), OUT_OF_BOUNDS)
def test_values_out_of_bounds_are_refused_by_field(
    changes: Change, where: tuple[str | int, ...]
) -> None:
    assert fault_of(changed(changes))[0] == where


@pytest.mark.parametrize(
    ("limit", "where"),
    [("STAGES_MAX", "jobs"), ("EDGES_MAX", "jobs"), ("EXECUTORS_MAX", "executors")],
)
def test_states_above_the_size_limits_are_refused(
    monkeypatch: pytest.MonkeyPatch, limit: str, where: str
) -> None:
    monkeypatch.setattr(snapshot, limit, 1)
    found, why = fault_of(EXAMPLE)
    assert found == (where,)
    assert "at most 1" in why


@pytest.mark.parametrize(
    ("changes", "members"),
    [
        ({}, [3, 4]),
        ({("source", "stage"): "read"}, [3, 4]),
        ({("source",): {}}, [0, 4]),
        ({("jobs", 1, "executors"): 5}, [3, 5]),
    ],
)
def test_default_executors_of_a_job_are_those_running_and_to_place(
    changes: Change, members: list[int]
) -> None:
    assert DecimaState.model_validate(changed(changes)).snapshot.members.tolist() == members


@pytest.mark.parametrize(
    ("name", "jobs", "stages"), [("tiny", 2, 4), ("small", 5, 30), ("large", 100, 1000)]
)
def test_examples_survive_a_round_trip(name: str, jobs: int, stages: int) -> None:
    state = examples()[name]
    assert (len(state.jobs), sum(len(job.stages) for job in state.jobs)) == (jobs, stages)
    assert DecimaState.model_validate_json(state.model_dump_json()) == state
    assert DecimaState.model_validate(state.model_dump()) == state


def test_every_field_has_a_description() -> None:
    schema = DecimaState.model_json_schema()
    for name, part in {**schema["$defs"], "DecimaState": schema}.items():
        for field, description in part["properties"].items():
            assert field == "version" or "description" in description, f"{name}.{field}"
    assert schema["examples"] == [EXAMPLE]


def test_outcome_requires_the_work() -> None:
    with pytest.raises(ValidationError):
        DecimaOutcome.model_validate({"job": "a", "completion_s": 3.0})
    with pytest.raises(ValidationError):
        DecimaOutcome(job="a", completion_s=3.0, work_s=0)
