"""Slurm's JSON: recorded of 22.05, the shapes of later parsers, host lists, marks."""

from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.slurm.records import (
    Mark,
    hosts,
    number,
    parse_all,
    parse_job,
    parse_mark,
    parse_node,
)
from loadmaster.platform.steering.slurm.state import ClusterState, GpuKind, cluster_state
from loadmaster.serving.systems.das.schema import DasState
from tests.platform.steering.slurm.parts import job, node, recorded


def state_of(
    jobs: list[dict[str, Any]], nodes: list[dict[str, Any]], now_s: float, **kinds: GpuKind
) -> ClusterState:
    return cluster_state(*parse_all(jobs, nodes), kinds, "", now_s)


def test_recorded_cluster_is_a_state_of_the_endpoint() -> None:
    found = recorded()
    state = state_of(found["jobs"], found["nodes"], found["time"])
    assert state.document is not None
    DasState.model_validate(state.document).check()
    jobs = {one["id"]: one for one in state.document["jobs"]}
    # Left alone: an array (4), a begin time of its user (6), a dependency (7), a hold (8). Running
    # ones (9, with an excluded node) are part of the state all the same; 10 has no GPU.
    assert set(state.waiting) == {"5", "11"}
    assert set(jobs) == {"1", "2", "3", "5", "9", "11"}
    assert (jobs["2"]["instances"], jobs["2"]["gpus"]) == (4, 1.0)
    assert jobs["2"]["placements"] == [
        {"machine": "n2", "instances": 3}, {"machine": "n3", "instances": 1}
    ]  # fmt: skip
    assert (jobs["1"]["age_s"], jobs["1"]["ran_s"]) == (found["time"] - 1_795_045_000, 7.0)
    assert jobs["3"]["gpus"] == 0.25
    assert jobs["3"]["placements"][0]["instances"] == 1  # COMPLETING holds its GPU
    assert jobs["5"]["gpu_type"] == "T4"
    assert (jobs["11"]["instances"], jobs["11"]["gpus"]) == (1, 2.0)
    machines = {one["name"]: one for one in state.document["machines"]}
    assert [machines[name]["gpus"] for name in ("n1", "n2", "n3")] == [4, 4, 2]  # n3 is drained


def test_shapes_of_later_data_parsers_are_read_alike() -> None:
    old = job(7, start_time=1100, job_state="RUNNING", nodes="n1", gres_detail=["gpu:v100:1"])
    times = "submit_time", "eligible_time", "start_time"
    new = {
        **old, "job_state": ["RUNNING"],
        **{name: {"set": True, "infinite": False, "number": old[name]}
           for name in ("tasks", "node_count", "cpus", *times)},
        "array_job_id": {"set": True, "infinite": False, "number": 0},
        "het_job_id": {"set": False, "infinite": False, "number": 0},
    }  # fmt: skip
    assert parse_job(new) == parse_job(old)
    drained = node("n1", state=["IDLE", "DRAIN"])
    found, idle = parse_node(drained), parse_node(node("n1", state=["IDLE"]))
    assert found is not None
    assert idle is not None
    assert (found.usable, idle.usable) == (False, True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, 3), (None, 0), ({"set": True, "number": 4}, 4), ({"set": False, "number": 4}, 0),
     ({"set": True, "infinite": True, "number": 4}, 0)],
)  # fmt: skip
def test_numbers(value: Any, expected: float) -> None:
    assert number(value) == expected


def test_host_lists() -> None:
    assert hosts("n[1-3,07],login") == ["n1", "n2", "n3", "n07", "login"]
    assert hosts("r[1-2]g[08-09]") == ["r1g08", "r1g09", "r2g08", "r2g09"]
    assert hosts("") == []


def test_mark_survives_its_text() -> None:
    mark = Mark(1000.0, 7.0, (("n1", 2), ("n-2", 1)), "because | of it")
    assert parse_mark(mark.text()) == mark
    assert parse_mark("loadmaster") == Mark()
    assert parse_mark("loadmaster ran_s=x placed=n1: | why") == Mark(reason="why")
    assert parse_mark("by the operator") is None


@pytest.mark.parametrize(
    "fields",
    [
        {"admin_comment": "", "eligible_time": 4600},  # its user's begin time
        {"array_job_id": 5},
        {"features": "big"},
        {"required_nodes": "n1", "admin_comment": ""},
        {"state_reason": "JobHeldAdmin"},
        {"state_reason": "AssocGrpGRES"},
        {"tres_per_node": ""},
    ],
)
def test_job_that_is_left_alone(fields: dict[str, Any]) -> None:
    state = state_of([job(1, **fields)], [node("n1")], 1001.0)
    assert (state.document, state.waiting) == (None, {})


def test_unmarked_job_that_waits_for_resources_is_steered() -> None:
    waiting = job(1, admin_comment="", eligible_time=1000, state_reason="Resources")
    assert set(state_of([waiting], [node("n1")], 1001.0).waiting) == {"1"}


def test_job_that_was_started_counts_as_placed_then_waits() -> None:
    mark = "loadmaster first_submit=1000 ran_s=0 placed=n1:1"
    started = job(1, admin_comment=mark, required_nodes="n1", eligible_time=1200)
    soon = state_of([started], [node("n1")], 1201.0)
    assert soon.document is not None
    assert soon.document["jobs"][0]["placements"] == [{"machine": "n1", "instances": 1}]
    assert state_of([started], [node("n1")], 1210.0).document is None  # not again at once
    assert set(state_of([started], [node("n1")], 1216.0).waiting) == {"1"}


def test_type_of_gpu_that_is_not_known_is_one_line_or_a_setting() -> None:
    jobs, nodes = [job(1)], [node("n1", gres="gpu:rtx:2")]
    with pytest.raises(InputError, match="node n1 has GPUs of type 'RTX'"):
        state_of(jobs, nodes, 1001.0)
    state = state_of(jobs, nodes, 1001.0, RTX=GpuKind(speed=0.7, price_per_hour=0.5))
    assert state.document is not None
    DasState.model_validate(state.document).check()


def test_job_for_a_type_that_no_node_has_is_left_alone() -> None:
    state = state_of([job(1, tres_per_node="gres:gpu:a100:1")], [node("n1")], 1001.0)
    assert (state.document, len(state.notes)) == (None, 1)
