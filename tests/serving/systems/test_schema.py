"""Validation of states: errors name the wrong field, the same for JSON and for mappings."""

import copy
import json
from typing import Any

import pytest
from pydantic import ValidationError

from loadmaster.serving.system import State
from loadmaster.serving.systems.aware.schema import EXAMPLE as AWARE_EXAMPLE
from loadmaster.serving.systems.aware.schema import AwareState
from loadmaster.serving.systems.das.schema import DasState
from loadmaster.serving.systems.decima import snapshot
from loadmaster.serving.systems.decima.examples import examples
from loadmaster.serving.systems.decima.records import EXECUTORS_MAX
from loadmaster.serving.systems.decima.schema import EXAMPLE, DecimaOutcome, DecimaState
from loadmaster.serving.systems.sure import records as sure_records
from loadmaster.serving.systems.sure.schema import EXAMPLE as SURE_EXAMPLE
from loadmaster.serving.systems.sure.schema import SureState
from tests.serving.systems.das.clusters import job, machine

MODELS = {
    "aware": AwareState, "das": DasState, "decima": DecimaState, "outcome": DecimaOutcome,
    "sure": SureState,
}  # fmt: skip
VALID: dict[str, Any] = {
    "aware": AWARE_EXAMPLE,
    "sure": SURE_EXAMPLE,
    "decima": EXAMPLE,
    "outcome": {"job": "a", "completion_s": 3.0, "work_s": 5.0},
    "das": {
        "machines": [machine("a"), machine("b", gpu="T4")],
        "jobs": [job("1", 1, 900, {"a": 2, "b": 1}, instances=3, cpus=2), job("2", 0.5)],
        "history": [{"age_s": 5, "speeds": {"a": 1}}, {"age_s": 9, "speeds": {}}],
    },
}
ON = "jobs.0.placements"
JOIN, SCAN, SUM = "jobs.0.stages.1", "jobs.1.stages.0", "jobs.1.stages.1"
BUSY, IDLE, PARALLELISM = (
    f"snapshots.{name}" for name in ("busy_ms_per_s", "idle_ms_per_s", "parallelism")
)
AGES = "snapshots.minutes_ago"
Changes = dict[str, Any]  # new values by path
NAN = float("nan")


def changed(system: str, changes: Changes) -> Any:
    """A valid state with other values at these paths."""
    state = copy.deepcopy(VALID[system])
    for path, value in changes.items():
        *outer, last = (int(key) if key.isdigit() else key for key in path.split("."))
        inside = state
        for key in outer:
            inside = inside[key]
        inside[last] = value
    return state


def fault_of(system: str, state: Any) -> tuple[str, str]:
    """Path and message of the first error."""
    with pytest.raises(ValidationError) as as_mapping:
        MODELS[system].model_validate(state)
    with pytest.raises(ValidationError) as as_text:
        MODELS[system].model_validate_json(json.dumps(state))
    first, again = as_mapping.value.errors()[0], as_text.value.errors()[0]
    assert (first["loc"], first["msg"]) == (again["loc"], again["msg"])
    return ".".join(map(str, first["loc"])), first["msg"]


@pytest.mark.parametrize(
    ("system", "changes", "field", "words"),
    [
        ("das", {"machines": []}, "machines", "at least 1"),
        ("das", {"machines.1.name": "a"}, "machines.1.name", "'a' is listed twice"),
        ("das", {"machines.1.gpu": "T5"}, "machines.1.gpu", "unknown GPU type 'T5'"),
        ("das", {"machines.1.gpus": 0.5}, "machines.1.gpus", "integer"),
        ("das", {"jobs.1.id": "1"}, "jobs.1.id", "'1' is listed twice"),
        ("das", {"jobs.1.gpus": 0}, "jobs.1.gpus", "0.01"),
        ("das", {"jobs.1.gpu_type": "{T4}"}, "jobs.1.gpu_type", "GPU type '{T4}'; expected"),
        ("das", {"jobs.1.running_s": 7}, "jobs.1.running_s", "so it waits"),
        ("das", {"jobs.1.speed": 1}, "jobs.1.speed", "so it waits"),
        ("das", {"jobs.0.instances": 4}, ON, "3 of its 4 instances placed"),
        ("das", {f"{ON}.1.machine": "z"}, f"{ON}.1.machine", "unknown machine 'z'"),
        ("das", {f"{ON}.1.machine": "a"}, f"{ON}.1.machine", "machine 'a' twice"),
        ("das", {"jobs.0.gpus": 2.5}, f"{ON}.0.machine", "4 GPUs and 32 cores left"),
        ("das", {"jobs.0.cpus": 20}, f"{ON}.0.machine", "would take 2 and 40"),
        ("das", {"jobs.0.gpu_type": "V100"}, f"{ON}.1.machine", "needs GPUs of type 'V100'"),
        ("das", {"history.1.age_s": 4}, "history.1.age_s", "latest first"),
        ("das", {"running_order": ["1", "2"]}, "running_order.1", "'2' is not a running job"),
        ("das", {"running_order": ["1", "1"]}, "running_order.1", "'1' is listed twice"),
        ("das", {"ask": "everything"}, "ask", "'event', 'placing', 'reconsidering'"),
        ("das", {"version": 2}, "version", "1"),
        ("das", {"jobs.1.colour": "red"}, "jobs.1.colour", "not permitted"),
        *(
            ("das", {"jobs.1.age_s": value}, "jobs.1.age_s", "number")
            for value in (NAN, float("inf"), "7x", None)
        ),
        ("decima", {"jobs.1.id": "daily-report"}, "jobs.1.id", "ids that differ"),
        ("decima", {f"{SUM}.id": "scan", f"{SUM}.parents": []}, f"{SUM}.id", "ids that differ"),
        ("decima", {f"{JOIN}.parents": ["scan"]}, f"{JOIN}.parents.0", "no stage of its job"),
        ("decima", {f"{JOIN}.parents": ["read", "read"]}, f"{JOIN}.parents", "twice"),
        ("decima", {f"{SUM}.parents": ["sum"]}, f"{SUM}.parents", "its own ancestor"),
        ("decima", {f"{SCAN}.parents": ["sum"]}, f"{SCAN}.parents", "its own ancestor"),
        ("decima", {f"{SCAN}.started": 21}, f"{SCAN}.started", "at most the 20 tasks"),
        ("decima", {f"{SCAN}.finished": 8}, f"{SCAN}.finished", "at most 7 started"),
        ("decima", {f"{SUM}.started": 1}, f"{SUM}.started", "before its parents are finished"),
        ("decima", {f"{JOIN}.started": 2, f"{JOIN}.finished": 2}, "jobs.0.stages", "all finished"),
        ("decima", {"executors.0.free": 9}, "executors.0.free", "as many as there are"),
        ("decima", {"executors.0.free": 0}, "executors.0.free", "at least one"),
        ("decima", {"executors.0.count": 6}, "executors", "expected at least 7"),
        ("decima", {"source": {"job": "x"}}, "source.job", "no job of this state"),
        ("decima", {"source": {"stage": "scan"}}, "source.stage", "source.job beside it"),
        ("decima", {"source.stage": "scan"}, "source.stage", "no stage of that job"),
        ("decima", {"jobs.1.executors": 3}, "jobs.1.executors", "at least 4"),
        ("decima", {"jobs.0.executors": 2}, "jobs.0.executors", "at least 3"),
        ("decima", {"jobs.1.promised": 1}, "jobs.1.promised", "promised to its stages"),
        ("decima", {"jobs.1.promised": 2, f"{SUM}.promised": 2}, "jobs.1.promised", "at most 8 in"),
        ("decima", {"version": 2}, "version", "1"),
        ("decima", {"jobs": []}, "jobs", "at least 1"),
        ("decima", {"executors.0.count": EXECUTORS_MAX + 1}, "executors.0.count", "10000"),
        ("decima", {"jobs.0.id": ""}, "jobs.0.id", "at least 1"),
        ("decima", {"jobs.0.colour": "red"}, "jobs.0.colour", "not permitted"),
        ("decima", {f"{SCAN}.tasks": 2.5}, f"{SCAN}.tasks", "integer"),
        ("decima", {f"{SCAN}.task_ms": NAN}, f"{SCAN}.task_ms", "finite"),
        ("decima", {f"{SCAN}.task_ms": "long"}, f"{SCAN}.task_ms", "number"),
        ("decima", {"ask": "everything"}, "ask", "'round' or 'one'"),
        ("sure", {"tasks.1.name": "clicks"}, "tasks.1.name", "names that differ"),
        ("sure", {"tasks.0.id": "store"}, "tasks.2.id", "ids that differ"),
        ("sure", {"tasks": []}, "tasks", "at least 1"),
        ("sure", {"tasks.0.max_parallelism": 0}, "tasks.0.max_parallelism", "equal to 1"),
        ("sure", {"tasks.1.source": True}, "tasks.1.source", "contradicts the edges"),
        ("sure", {"tasks.2.sink": False}, "tasks.2.sink", "contradicts the edges"),
        ("sure", {"tasks.0.chained": True}, "tasks.0.chained", "0 parents; expected one"),
        ("sure", {"tasks.0.key_groups": 7}, "tasks.0.key_groups", "at least its max_parallelism 8"),
        ("sure", {"edges.1": ["sessions", "{x}"]}, "edges.1.1", "'{x}' is no task of the job"),
        ("sure", {"edges.1": ["clicks", "sessions"]}, "edges.1", "twice"),
        ("sure", {"edges.1": ["store"]}, "edges.1", "at least 2"),
        ("sure", {"edges": [["store", "store"]]}, "edges", "store depend on each other"),
        ("sure", {"edges.1": ["sessions", "clicks"]}, "edges", "expected a DAG"),
        ("sure", {AGES: []}, AGES, "at least 1"),
        ("sure", {f"{AGES}.2": 0.5}, f"{AGES}.2", "expected 0"),
        ("sure", {f"{AGES}.0": 1}, f"{AGES}.1", "the oldest snapshot first"),
        ("sure", {f"{AGES}.1": -1}, f"{AGES}.1", "equal to 0"),
        ("sure", {PARALLELISM: [[2, 4, 1]]}, PARALLELISM, "1 rows; expected 3"),
        ("sure", {f"{PARALLELISM}.1": [2, 4]}, f"{PARALLELISM}.1", "2 values; expected 3"),
        ("sure", {f"{PARALLELISM}.1.0": 0}, f"{PARALLELISM}.1.0", "equal to 1"),
        ("sure", {f"{PARALLELISM}.1.0": 9}, f"{PARALLELISM}.1.0", "at most 8, its max_parallelism"),
        ("sure", {f"{BUSY}.2.1": 2300}, f"{BUSY}.2.1", "2338 ms of a second; expected about 1000"),
        ("sure", {f"{BUSY}.2.1": None}, f"{BUSY}.2.1", "only sources may lack"),
        ("sure", {f"{IDLE}.2.1": None}, f"{IDLE}.2.1", "number"),
        ("sure", {f"{IDLE}.0.2": -1}, f"{IDLE}.0.2", "equal to 0"),
        ("sure", {f"{IDLE}.0.2": NAN}, f"{IDLE}.0.2", "finite"),
        *(
            ("sure", {f"snapshots.{name}.0.1": -0.1}, f"snapshots.{name}.0.1", "equal to 0")
            for name in ("records_in_per_s", "records_out_per_s", "pending_records", "buffer_usage")
        ),
        ("sure", {"snapshots.buffer_usage.0.1": 1.1}, "snapshots.buffer_usage.0.1", "equal to 1"),
        ("sure", {"time_of_week_min": 10081}, "time_of_week_min", "10080"),
        ("sure", {"max_instances": 0}, "max_instances", "equal to 1"),
        ("sure", {"minutes_since_restart": -1}, "minutes_since_restart", "equal to 0"),
        ("sure", {"version": 2}, "version", "1"),
        ("aware", {"application": ""}, "application", "at least 1"),
        ("aware", {"slo_s": 0}, "slo_s", "greater than 0"),
        ("aware", {"slo_s": NAN}, "slo_s", "number"),
        ("aware", {"bounds.replicas": [0, 5]}, "bounds.replicas.0", "equal to 1"),
        ("aware", {"bounds.replicas": [5, 1]}, "bounds.replicas", "5 is above 1"),
        ("aware", {"bounds.cpu_m": [2048, 128]}, "bounds.cpu_m", "expected the least first"),
        ("aware", {"bounds.memory_mib": [256]}, "bounds.memory_mib", "at least 2"),
        ("aware", {"plan.replicas": 0}, "plan.replicas", "equal to 1"),
        ("aware", {"plan.replicas": 2.5}, "plan.replicas", "integer"),
        ("aware", {"plan.cpu_m": 0}, "plan.cpu_m", "equal to 1"),
        ("aware", {"reports.age_s": []}, "reports.age_s", "at least 1"),
        ("aware", {"reports.age_s.1": 70}, "reports.age_s.1", "70 after 63; expected the oldest"),
        ("aware", {"reports.age_s.4": 18}, "reports.age_s.4", "18 after 18"),
        ("aware", {"reports.age_s.4": -1}, "reports.age_s.4", "equal to 0"),
        ("aware", {"reports.pods": [3, 3]}, "reports.pods", "2 values; expected 5, as many as age"),
        ("aware", {"reports.ooms": [0]}, "reports.ooms", "1 values; expected 5"),
        ("aware", {"reports.seen": [1, 1]}, "reports.seen", "2 values; expected 5"),
        ("aware", {"reports.seen": [1, 1, 1, 1, 2]}, "reports.seen.4", "equal to 1"),
        ("aware", {"reports.used_cpu_m.0": NAN}, "reports.used_cpu_m.0", "number"),
        ("aware", {"reports.used_cpu_m.0": -1}, "reports.used_cpu_m.0", "equal to 0"),
        ("aware", {"reports.limit_cpu_m.1": 0}, "reports.limit_cpu_m.1", "0 with 1245 used"),
        ("aware", {"reports.used_cpu_m": [None] * 5}, "reports", "expected at least one report"),
        ("aware", {"reports.pods": [None] * 5}, "reports", "no row of the last hour"),
        ("aware", {"reports.seen": [0] * 5}, "reports", "expected at least one report"),
        (
            "aware",
            {"reports.age_s": [9e3, 8e3, 7e3, 6e3, 5e3]},
            "reports",
            "no row of the last hour",
        ),
        ("aware", {"steps.requests": []}, "steps.requests", "at least 1"),
        ("aware", {"steps.p99_s": [0.2]}, "steps.p99_s", "1 values; expected 2, as many as req"),
        ("aware", {"steps.restarts": [0]}, "steps.restarts", "1 values; expected 2"),
        ("aware", {"steps.requests.0": None}, "steps.requests.0", "number"),
        ("aware", {"steps.colour": []}, "steps.colour", "not permitted"),
        ("aware", {"version": 2}, "version", "1"),
        ("outcome", {"work_s": 0}, "work_s", "greater than 0"),
        ("outcome", {"work_s": None}, "work_s", "number"),
    ],
)
def test_invalid_field_is_refused(system: str, changes: Changes, field: str, words: str) -> None:
    found, message = fault_of(system, changed(system, changes))
    assert found == field
    assert words in message
    assert "\n" not in message


def test_too_large_states_of_das_are_refused() -> None:
    machines = [machine(str(n)) for n in range(2001)]
    jobs = [job(str(n)) for n in range(5001)]
    gangs = [job(str(n), 0.01, instances=2000) for n in range(501)]
    for count, given, field, words in (
        (2001, [], "machines", "2000"),
        (1, jobs, "jobs", "5000"),
        (2000, gangs, "jobs", "1,002,000 places"),
    ):
        found, message = fault_of("das", {"machines": machines[:count], "jobs": given})
        assert found == field
        assert words in message


@pytest.mark.parametrize(
    ("limit", "field"),
    [("STAGES_MAX", "jobs"), ("EDGES_MAX", "jobs"), ("EXECUTORS_MAX", "executors")],
)
def test_too_large_states_of_decima_are_refused(
    monkeypatch: pytest.MonkeyPatch, limit: str, field: str
) -> None:
    monkeypatch.setattr(snapshot, limit, 1)
    found, message = fault_of("decima", EXAMPLE)
    assert found == field
    assert "at most 1" in message


def test_too_large_states_of_sure_are_refused() -> None:
    tasks = [{"name": str(n)} for n in range(sure_records.TASKS_MAX + 1)]
    ages = list(range(sure_records.SNAPSHOTS_MAX, -1, -1))
    edges = [["clicks", "sessions"]] * (sure_records.EDGES_MAX + 1)
    for changes, field in (
        ({"tasks": tasks}, "tasks"),
        ({AGES: ages}, AGES),
        ({"edges": edges}, "edges"),
    ):
        found, message = fault_of("sure", changed("sure", changes))
        assert found == field
        assert "at most" in message


@pytest.mark.parametrize(
    ("changes", "members"),
    [
        ({}, [3, 4]),
        ({"source.stage": "read"}, [3, 4]),
        ({"source": {}}, [0, 4]),
        ({"jobs.1.executors": 5}, [3, 5]),
    ],
)
def test_default_executors_run_or_are_to_place(changes: Changes, members: list[int]) -> None:
    state = DecimaState.model_validate(changed("decima", changes))
    assert state.snapshot.members.tolist() == members


def test_states_survive_a_round_trip() -> None:
    found = examples()
    sizes = [(len(one.jobs), sum(len(job.stages) for job in one.jobs)) for one in found.values()]
    assert sizes == [(2, 4), (5, 30), (100, 1000)]
    for state in (*found.values(), DasState.model_validate(VALID["das"])):
        assert type(state).model_validate_json(state.model_dump_json()) == state
        assert type(state).model_validate(state.model_dump()) == state


@pytest.mark.parametrize("state", [DecimaState, SureState])
def test_every_field_has_a_description(state: type[State]) -> None:
    schema = state.model_json_schema()
    for name, part in {**schema["$defs"], "state": schema}.items():
        for field, description in part["properties"].items():
            assert field == "version" or "description" in description, f"{name}.{field}"
