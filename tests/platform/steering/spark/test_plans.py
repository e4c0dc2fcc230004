"""States from reports, and plans from decisions."""

from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.spark.durations import TaskDurations
from loadmaster.platform.steering.spark.plans import plan_of, state_of
from loadmaster.platform.steering.spark.reports import Report, parse_report
from loadmaster.serving.systems.decima.schema import DecimaState
from tests.platform.steering.spark.parts import job, report, stage, two_jobs


def read(document: dict[str, Any]) -> Report:
    return Report.model_validate(document)


def valid(document: dict[str, Any] | None) -> DecimaState:
    assert document is not None
    state = DecimaState.model_validate(document)
    state.check()
    return state


def test_a_state_offers_all_slots() -> None:
    state, notes = state_of(read(two_jobs()), 2.0, TaskDurations(500.0))
    found = valid(state)
    assert [(group.count, group.free) for group in found.executors] == [(4, 4)]
    long, short = found.jobs
    assert (long.age_s, short.age_s) == (7.0, 3.0)
    assert (long.stages[0].started, long.stages[0].finished) == (4, 4)  # running ones count again
    assert [one.parents for one in short.stages] == [(), ("1",)]
    assert short.stages[1].task_ms == 500.0
    assert len(notes) == 1  # a stage of unknown duration
    assert not found.more_to_come


def test_finished_jobs_and_empty_stages_are_left_out() -> None:
    done = job(0, stage(0, 4, started=4, finished=4))
    empty = job(1, stage(1, 0), stage(2, 2, parents=[1]))
    found = valid(state_of(read(report(done, empty)), 0.0, TaskDurations(500.0))[0])
    assert [one.id for one in found.jobs] == ["job-1"]
    assert [(one.id, one.parents) for one in found.jobs[0].stages] == [("2", ())]


@pytest.mark.parametrize("document", [report(), report(job(0, stage(0)), slots=0)])
def test_nothing_to_decide(document: dict[str, Any]) -> None:
    assert state_of(read(document), 0.0, TaskDurations(500.0))[0] is None


def test_a_parent_that_is_computed_anew_does_not_make_the_state_invalid() -> None:
    again = job(0, stage(0, 2, finished=1, started=2), stage(1, 4, started=3, parents=[0]))
    state, _ = state_of(read(report(again)), 0.0, TaskDurations(500.0))
    valid(state)
    assert state is not None


def test_durations_come_from_the_stage_then_its_name_then_the_profile_then_a_mean() -> None:
    known = TaskDurations(700.0, {("query 2", "stage 3"): 30.0})
    assert known.find(*both(9, 9)) == (30.0, False)  # the mean of the profile
    known.note(read(report(job(1, stage(1, mean_ms=200.0)))))
    assert known.find(*both(1, 1)) == (200.0, True)
    assert known.find(*both(2, 3)) == (30.0, True)
    assert known.find(*both(9, 9)) == (200.0, False)
    assert known.find(*both(1, 1, mean_ms=250.0)) == (250.0, True)
    assert TaskDurations(700.0).find(*both(1, 1)) == (700.0, False)


def both(number: int, of_stage: int, **fields: Any) -> Any:
    found = read(report(job(number, stage(of_stage, **fields)))).jobs[0]
    return found, found.stages[0]


DECISION = {
    "assignments": [
        {"job": "job-1", "stage": "7", "executors": 2, "limit": 2},
        {"job": "job-0", "stage": "3", "executors": 1, "limit": 1},
        {"job": "job-1", "stage": "5", "executors": 1, "limit": 3},
    ],
    "idle": 2,
}


def test_a_plan_has_the_order_and_the_limits() -> None:
    plan = plan_of(DECISION)
    assert plan.stages == (7, 3, 5)
    assert plan.limits == {"job-1": 3, "job-0": 1}
    assert plan.idle == 0
    document = plan.document(2.5, "why")
    assert (document["ttl_ms"], document["reason"]) == (2500, "why")
    assert document["jobs"] == {"job-1": 0, "job-0": 1}  # places of stages newer than the plan


def test_limits_are_multiplied_or_left_out() -> None:
    assert plan_of(DECISION, 1.5).limits == {"job-1": 5, "job-0": 2}
    free = plan_of(DECISION, None)
    assert (free.limits, free.jobs) == ({}, ("job-1", "job-0"))
    assert plan_of(DECISION, 1.0, may_idle=True).idle == 2


def test_the_same_plan_has_the_same_id() -> None:
    assert plan_of(DECISION).id == plan_of(dict(DECISION)).id
    assert plan_of(DECISION).id != plan_of(DECISION, 2.0).id
    assert plan_of({}).stages == ()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"nothing", "the body"),
        (b"[]", "the body"),
        (b"{}", "version"),
        (b'{"version": 2}', "version"),
        (b'{"version": 1}', "application"),
        (b'{"version": 1, "application": "a", "slots": -1, "jobs": []}', "slots"),
        (b'{"version": 1, "application": "a", "slots": 1, "jobs": [{"id": "j"}]}', "jobs.0.stages"),
        (b'{"version": 1, "application": "a", "slots": NaN, "jobs": []}', "slots"),
    ],
)
def test_malformed_reports_are_refused_in_one_line(body: bytes, field: str) -> None:
    with pytest.raises(InputError) as fault:
        parse_report(body)
    assert str(fault.value).startswith(field)
    assert "\n" not in str(fault.value)
