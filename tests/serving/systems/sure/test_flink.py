"""Conversion of recorded REST answers of Flink 2.3 (tests/data/flink) into a job's state."""

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.serving.systems.sure.flink import FlinkPoll, job_state, metric_query
from loadmaster.serving.systems.sure.flink_answers import (
    BLOCKED,
    BUSY,
    IDLE,
    PENDING,
    RECORDS_IN,
    RESTORED,
)
from loadmaster.serving.systems.sure.rules import RULES, SureRule
from loadmaster.serving.systems.sure.schema import SureState
from loadmaster.serving.systems.sure.system import ENDPOINT

DATA = Path(__file__).parents[3] / "data" / "flink"
SOURCE, PARSE, ENRICH, SINK = range(4)


def recorded(name: str) -> list[FlinkPoll]:
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    answers = [json.loads(line) for line in lines]
    return [FlinkPoll(a["time"], a["job"], a["metrics"], a["rescales"]) for a in answers]


@pytest.fixture
def polls() -> list[FlinkPoll]:
    """A job at 500 records/s, from 80 s on at 1800, from 235 s on at 300; see the README there."""
    return copy.deepcopy(recorded("rescaled.jsonl"))


def until(polls: list[FlinkPoll], second: float) -> list[FlinkPoll]:
    return [poll for poll in polls if poll.time_s - polls[0].time_s <= second]


def metric(poll: FlinkPoll, task: int, name: str) -> dict[str, Any]:
    answers = poll.metrics[poll.job["vertices"][task]["id"]]
    return next(answer for answer in answers if answer["id"] == name)  # type: ignore[return-value]


def remove(poll: FlinkPoll, task: int, *names: str) -> None:
    answers = poll.metrics[poll.job["vertices"][task]["id"]]
    answers[:] = [a for a in answers if not a["id"].endswith(names)]  # type: ignore[index]


def test_graph(polls: list[FlinkPoll]) -> None:
    state = job_state(polls).state
    assert (state.job, state.max_instances) == ("scaling", 200)
    assert job_state(polls, max_instances=12).state.max_instances == 12
    assert [task.name for task in state.tasks] == [
        *("Source: source", "parse", "enrich", "sink: Writer"),
    ]
    assert [task.max_parallelism for task in state.tasks] == [1, 64, 64, 64]
    assert [task.source for task in state.tasks] == [True, False, False, False]
    assert [task.sink for task in state.tasks] == [False, False, False, True]
    assert state.edges == (
        ("Source: source", "parse"),
        ("parse", "enrich"),
        ("enrich", "sink: Writer"),
    )


def test_equal_names_get_the_vertex_id(polls: list[FlinkPoll]) -> None:
    for poll in polls:
        poll.job["vertices"][ENRICH]["name"] = "parse"
    tasks = job_state(polls).state.tasks
    assert tasks[ENRICH].name == f"parse ({tasks[ENRICH].id})"
    assert len({task.name for task in tasks}) == 4


def test_state_is_json_with_a_row_a_minute(polls: list[FlinkPoll]) -> None:
    state = job_state(polls).state
    assert SureState.model_validate_json(state.model_dump_json()) == state
    ages = state.snapshots.minutes_ago
    assert ages == tuple(range(len(ages) - 1, -1, -1))
    assert len(ages) >= 5
    for column, rows in state.snapshots.model_dump(exclude_unset=True).items():
        if column != "minutes_ago":
            assert [len(row) for row in rows] == [4] * len(ages), column


def test_history_limits_the_snapshots(polls: list[FlinkPoll]) -> None:
    assert job_state(polls, history=2).state.snapshots.minutes_ago == (1, 0)


def test_time_of_week_is_that_of_the_newest_poll(polls: list[FlinkPoll]) -> None:
    moment = datetime.fromtimestamp(polls[-1].time_s, UTC)
    expected = moment.weekday() * 1440 + moment.hour * 60 + moment.minute + moment.second / 60
    assert job_state(polls).state.time_of_week_min == pytest.approx(expected, abs=0.02)


def test_steady_rates(polls: list[FlinkPoll]) -> None:
    steady = job_state(until(polls, 80)).state.snapshots
    assert steady.records_out_per_s[-1][:3] == pytest.approx([500] * 3, rel=0.05)
    assert steady.records_in_per_s[-1][1:] == pytest.approx([500] * 3, rel=0.05)
    assert steady.busy_ms_per_s[-1][PARSE] == pytest.approx(500, rel=0.15)
    assert steady.pending_records[-1][SOURCE] == pytest.approx(0, abs=100)


def test_overloaded_task(polls: list[FlinkPoll]) -> None:
    overloaded = job_state(until(polls, 140)).state.snapshots
    assert overloaded.busy_ms_per_s[-1][PARSE] > 900
    assert overloaded.backpressured_ms_per_s[-1][SOURCE] > 500
    assert overloaded.buffer_usage[-1][PARSE] > 0.5
    rates = job_state(until(polls, 140)[5:]).state.snapshots.records_in_per_s[-1]
    assert rates[1:] == pytest.approx([1000] * 3, rel=0.05)
    pending = overloaded.pending_records[-1]
    assert pending[SOURCE] is not None
    assert pending[SOURCE] > 10_000
    assert pending[1:] == (0.0,) * 3


def test_rescales(polls: list[FlinkPoll]) -> None:
    state = job_state(polls).state
    assert state.snapshots.parallelism[-2] == (1, 4, 2, 1)  # as its metrics, of before
    plans = [row[PARSE : ENRICH + 1] for row in state.snapshots.parallelism]
    assert plans[0] == (1, 1)
    assert (4, 2) in plans
    assert plans[-1] == (1, 1)
    last = polls[-1].rescales["latest"]["completed"]  # type: ignore[index]
    ended = (polls[-1].job["now"] - last["endTimestampInMillis"]) / 60_000
    assert state.restart_minutes == pytest.approx(0.02, abs=0.015)
    assert state.minutes_since_restart == pytest.approx(ended + state.restart_minutes)
    rates = state.snapshots.records_in_per_s
    assert all(0 <= rate < 5000 for row in rates for rate in row)


def test_length_of_a_restart_leaves_out_the_wait_for_its_trigger(polls: list[FlinkPoll]) -> None:
    last = polls[-1].rescales["latest"]["completed"]  # type: ignore[index]
    entered = last["endTimestampInMillis"] - 183
    last["schedulerStates"] = [
        {"state": "Executing", "enterTimestampInMillis": entered - 8615},
        {"state": "Restarting", "enterTimestampInMillis": entered},
    ]
    assert job_state(polls).state.restart_minutes == pytest.approx(0.183 / 60)


def test_tasks_without_keys(polls: list[FlinkPoll]) -> None:
    """The rule aligns parallelism to key groups only where the input is distributed by keys."""
    state = job_state(polls).state
    assert [task.keyed for task in state.tasks] == [True, False, True, False]
    groups = state.parsed.snapshot.job.key_groups
    assert groups[ENRICH] == 64
    assert all(groups[PARSE] % instances == 0 for instances in range(1, 43))
    for poll in polls:
        for node in poll.job["plan"]["nodes"]:
            for one in node.get("inputs", ()):
                del one["ship_strategy"]
    assert all(task.keyed for task in job_state(polls).state.tasks)


def test_restoring_of_state_is_part_of_a_restart(polls: list[FlinkPoll]) -> None:
    before = job_state(polls).state
    last = polls[-1].rescales["latest"]["completed"]  # type: ignore[index]
    last[RESTORED] = 1_500
    state = job_state(polls).state
    assert state.restart_minutes == pytest.approx(before.restart_minutes + 1.5 / 60)
    assert state.minutes_since_restart == before.minutes_since_restart


def test_repeated_records_do_not_arrive(polls: list[FlinkPoll]) -> None:
    """In the minute of a restart the source reads records again, and catches up."""
    for second in (205, 240):
        state = job_state(until(polls, second)).state
        restarted = [row[PARSE] for row in state.snapshots.parallelism].index(4)
        assert state.snapshots.records_out_per_s[restarted][SOURCE] > 2_500
        assert state.snapshots.records_in_per_s[restarted][SOURCE] == pytest.approx(1_800, rel=0.1)


def test_restart_without_history_of_rescales(polls: list[FlinkPoll]) -> None:
    state = job_state([replace(poll, rescales=None) for poll in polls]).state
    assert state.restart_minutes is None
    assert state.minutes_since_restart == pytest.approx(0.92, abs=0.02)
    early = job_state([replace(poll, rescales=None) for poll in until(polls, 140)]).state
    assert early.minutes_since_restart is None


def test_first_start_is_no_restart(polls: list[FlinkPoll]) -> None:
    state = job_state(until(polls, 140)).state
    assert (state.minutes_since_restart, state.restart_minutes) == (None, None)


def test_polls_soon_after_a_start_give_parallelism_alone(polls: list[FlinkPoll]) -> None:
    soon = until(polls, 151)
    assert soon[-1].job["vertices"][PARSE]["parallelism"] == 4
    conversion = job_state(soon)
    assert any("after a start" in note for note in conversion.notes if note.startswith("0 min"))
    before = job_state(soon[:-1]).state.snapshots
    after = conversion.state.snapshots
    assert after.parallelism[-1] == (1, 4, 2, 1)
    assert after.busy_ms_per_s[-1][ENRICH] == pytest.approx(
        before.busy_ms_per_s[-1][ENRICH], rel=0.1
    )


def test_counter_that_fell_counts_from_zero(polls: list[FlinkPoll]) -> None:
    pair = until(polls, 80)[-2:]
    fallen = metric(pair[1], PARSE, RECORDS_IN)
    fallen["sum"] = 3000.0
    seconds = pair[1].time_s - pair[0].time_s
    rate = job_state(pair).state.snapshots.records_in_per_s[-1][PARSE]
    assert rate == pytest.approx(3000 / seconds)


def test_rates_do_not_depend_on_the_distance_of_polls(polls: list[FlinkPoll]) -> None:
    steady = until(polls, 80)[1:]
    unequal = [steady[0], *steady[2:3], steady[-1]]
    rates = job_state(unequal).state.snapshots.records_out_per_s[-1]
    assert rates[PARSE] == pytest.approx(500, rel=0.05)


def test_minutes_without_a_poll_are_left_out(polls: list[FlinkPoll]) -> None:
    few = [polls[2], polls[3], polls[-1]]
    assert job_state(few).state.snapshots.minutes_ago[-1] == 0
    assert len(job_state(few).state.snapshots.minutes_ago) == 2


def test_source_without_busy_time_and_pending_records() -> None:
    polls = recorded("legacy.jsonl")
    assert metric(polls[-1], SOURCE, BUSY)["avg"] == "NaN"
    conversion = job_state(polls)
    last = conversion.state.snapshots
    assert last.busy_ms_per_s[-1][0] == 1000 - last.idle_ms_per_s[-1][0]
    assert last.pending_records[-1] == (None, 0.0, 0.0)
    assert last.records_out_per_s[-1][0] == pytest.approx(300, rel=0.1)
    assert any(BUSY in note and "ticks" in note for note in conversion.notes)


def test_busy_without_idle_is_that_of_the_snapshot_before(polls: list[FlinkPoll]) -> None:
    expected = job_state(polls).state.snapshots.busy_ms_per_s
    metric(polls[-1], PARSE, BUSY).update(avg="NaN", max=math.nan)
    remove(polls[-1], PARSE, IDLE)
    conversion = job_state(polls)
    busy = conversion.state.snapshots.busy_ms_per_s
    assert busy[-1][PARSE] == busy[-2][PARSE] == expected[-2][PARSE] != expected[-1][PARSE]
    assert any("'parse'" in note and "snapshot before" in note for note in conversion.notes)


def test_nan_busy_is_computed_from_idle_and_blocked(polls: list[FlinkPoll]) -> None:
    metric(polls[-1], PARSE, BUSY).update(avg="NaN", max="NaN")
    metric(polls[-1], PARSE, IDLE).update(avg=600.0)
    metric(polls[-1], PARSE, BLOCKED).update(avg=150.0)
    conversion = job_state(polls)
    assert conversion.state.snapshots.busy_ms_per_s[-1][PARSE] == 250.0
    assert conversion.state.snapshots.busy_max_ms_per_s[-1][PARSE] == 250.0
    assert any(note.startswith("0 min ago") and BUSY in note for note in conversion.notes)


def test_busy_time_soon_after_a_rescale_is_not_used(polls: list[FlinkPoll]) -> None:
    """A recorded case: Flink reports 1000 ms for all, and the polls before it the true ones."""
    soon = [p for p in polls if metric(p, SINK, BUSY)["avg"] == 1000.0]
    assert len(soon) == 5
    busy = job_state(polls).state.snapshots.busy_ms_per_s
    assert all(row[SINK] < 10 for row in busy)


def test_missing_pending_records_are_none(polls: list[FlinkPoll]) -> None:
    remove(polls[-1], SOURCE, PENDING)
    pending = job_state(polls).state.snapshots.pending_records
    assert pending[-1][SOURCE] is None
    assert pending[-2][SOURCE] is not None


def test_poll_during_a_restart_is_not_used(polls: list[FlinkPoll]) -> None:
    polls[-2].job.update(state="CREATED", vertices=[])  # type: ignore[attr-defined]
    conversion = job_state(polls)
    assert any("CREATED" in note for note in conversion.notes)
    assert conversion.state.snapshots.minutes_ago[-1] == 0


def _first_only(polls: list[FlinkPoll]) -> None:
    del polls[1:]


def _not_in_order(polls: list[FlinkPoll]) -> None:
    polls.reverse()


def _other_job(polls: list[FlinkPoll]) -> None:
    polls[3].job["jid"] = "0" * 32  # type: ignore[index]


def _other_vertices(polls: list[FlinkPoll]) -> None:
    polls[3].job["vertices"].pop()


def _unknown_vertex(polls: list[FlinkPoll]) -> None:
    polls[3].metrics["f" * 32] = []  # type: ignore[index]


def _vertex_without_answer(polls: list[FlinkPoll]) -> None:
    del polls[3].metrics[polls[3].job["vertices"][PARSE]["id"]]  # type: ignore[attr-defined]


def _unknown_in_plan(polls: list[FlinkPoll]) -> None:
    polls[-1].job["plan"]["nodes"][1]["inputs"][0]["id"] = "f" * 32


def _not_running(polls: list[FlinkPoll]) -> None:
    polls[-1].job["state"] = "RESTARTING"  # type: ignore[index]


def _other_answer(polls: list[FlinkPoll]) -> None:
    del polls[3].job["plan"]  # type: ignore[attr-defined]


def _no_number(polls: list[FlinkPoll]) -> None:
    metric(polls[-1], PARSE, RECORDS_IN)["sum"] = "many"


def _never_counted(polls: list[FlinkPoll]) -> None:
    for poll in polls:
        remove(poll, PARSE, RECORDS_IN)


def _too_many_instances(polls: list[FlinkPoll]) -> None:
    polls[-1].job["vertices"][PARSE]["parallelism"] = 65


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_first_only, "1 poll"),
        (_not_in_order, "poll 1"),
        (_other_job, "poll 3"),
        (_other_vertices, "poll 3"),
        (_unknown_vertex, "f" * 32),
        (_vertex_without_answer, "poll 3"),
        (_unknown_in_plan, "f" * 32),
        (_not_running, "RESTARTING"),
        (_other_answer, "'plan'"),
        (_no_number, "'many'"),
        (_never_counted, "'parse'"),
        (_too_many_instances, "snapshots.parallelism"),
    ],
)
def test_bad_polls_are_refused_in_one_line(
    polls: list[FlinkPoll], change: Callable[[list[FlinkPoll]], None], named: str
) -> None:
    change(polls)
    with pytest.raises(InputError) as error:
        job_state(polls)
    assert named in str(error.value)
    assert "\n" not in str(error.value)
    assert "expected" in str(error.value) or "did you mean" in str(error.value)


def test_job_that_has_just_started_is_refused() -> None:
    """A recorded case: no metrics of a vertex at first, so one poll has counters."""
    polls = recorded("started.jsonl")
    assert [] in polls[0].metrics.values()
    with pytest.raises(InputError) as error:
        job_state(polls)
    assert "records_in" in str(error.value)


@pytest.mark.parametrize("name", ["rescaled.jsonl", "legacy.jsonl"])
def test_the_endpoint_decides_on_recorded_answers(name: str) -> None:
    state = job_state(recorded(name)).state
    vertices = {task.id for task in state.tasks}
    for rule in RULES:
        decision = SureRule(rule).decide(state).decision
        assert ENDPOINT.validate_decision(state, decision) is None
        assert decision.requirements.keys() == vertices


def test_metric_query_has_pending_records_of_operators() -> None:
    listed = ["numRecordsIn", "parse.numRecordsIn", "Source__source.pendingRecords", "Status.JVM"]
    assert metric_query(listed) == "numRecordsIn,Source__source.pendingRecords"
