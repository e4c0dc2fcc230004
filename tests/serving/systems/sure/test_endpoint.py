"""SURE's endpoint: states give the simulator's observation and the decisions of an episode."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.stream_scaling import state as cols
from loadmaster.envs.stream_scaling.actions import HOLD
from loadmaster.envs.stream_scaling.baselines import BASELINES
from loadmaster.envs.stream_scaling.episode import build_setup
from loadmaster.envs.stream_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.stream_scaling.observation import TIME_COLUMNS
from loadmaster.envs.stream_scaling.restart import rescale
from loadmaster.envs.stream_scaling.rollout import run_baseline
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.envs.stream_scaling.snapshot import observe_snapshot
from loadmaster.serving.systems.sure.examples import examples
from loadmaster.serving.systems.sure.job_graph import parse_graph
from loadmaster.serving.systems.sure.records import Snapshots
from loadmaster.serving.systems.sure.schema import EXAMPLE, SureState, to_decision
from loadmaster.serving.systems.sure.system import ENDPOINT, BundlePolicy
from tests.serving.systems.sure import jobs

PRESENT = TIME_COLUMNS.index("present")


def edited(**changes: Any) -> SureState:
    """The example by hand with other fields; names of tables are those of `snapshots`."""
    state = copy.deepcopy(EXAMPLE)
    tables: Any = state["snapshots"]
    for name, value in changes.items():
        (tables if name in Snapshots.model_fields else state)[name] = value
    return SureState.model_validate(state)


def plan(**counts: int) -> dict[str, int]:
    return {"clicks": 2, "sessions": 4, "store": 1, **counts}


@pytest.mark.parametrize(
    "settings",
    [
        {"job": "small-1", "missing_metrics": 0.2},
        {"job": "large-2", "history": 20, "max_parallelism": 12},
        {"job": "medium-1", "history": 110, "semantics": "paper"},  # longer than the warm-up
    ],
    ids=lambda settings: settings["job"],
)
def test_states_give_the_observation_of_the_simulator(settings: dict[str, Any]) -> None:
    for runner in jobs.decisions(9, **settings):
        state = jobs.sent(runner)
        found = observe_snapshot(state.parsed.snapshot, runner.settings.history)
        for name, table in runner.view._asdict().items():
            np.testing.assert_allclose(
                getattr(found, name), table, rtol=1e-6, atol=1e-6, err_msg=name
            )
        assert not state.parsed.notes or settings.get("missing_metrics")


def test_decisions_equal_those_of_the_episode(tmp_path: Path) -> None:
    folder = jobs.bundle(tmp_path / "b", job="small-1")
    served, own = ENDPOINT.policy(folder), jobs.policy(folder)
    assert isinstance(served, BundlePolicy)
    acted = 0
    for runner in jobs.decisions(40, job="small-1", load_scale=2.0):
        state = jobs.sent(runner)
        proposal = served.decide(state)
        assert ENDPOINT.validate_decision(state, proposal.decision) is None
        decision = own.decide(runner.view._asdict(), runner.settings)
        before = runner.parallelism.copy()
        runner.decide(decision.action)
        names = runner.setup.job.names
        assert proposal.decision.parallelism == dict(
            zip(names, runner.parallelism.tolist(), strict=True)
        )
        assert proposal.decision.act == (before != runner.parallelism).any()
        acted += proposal.decision.act
    assert 2 < acted < 38


def test_the_order_of_tasks_does_not_matter(tmp_path: Path) -> None:
    """Children may be listed before their parents."""
    policy = ENDPOINT.policy(jobs.bundle(tmp_path / "b"))
    (runner, *_) = list(jobs.decisions(1, job="small-1", load_scale=2.0, initial=2))
    state = jobs.sent(runner)
    order = np.random.default_rng(1).permutation(len(state.tasks)).tolist()
    fields = state.model_dump(mode="json")
    fields["tasks"] = [fields["tasks"][place] for place in order]
    for name, table in fields["snapshots"].items():
        if name != "minutes_ago":
            fields["snapshots"][name] = [[row[place] for place in order] for row in table]
    other = SureState.model_validate(fields)
    for decides in (policy, *map(ENDPOINT.rule, ENDPOINT.rules)):
        expected, found = decides.decide(state).decision, decides.decide(other).decision
        assert found.parallelism == expected.parallelism
        assert list(found.parallelism) == [task["name"] for task in fields["tasks"]]
        assert ENDPOINT.validate_decision(other, found) is None


def test_graphs_of_jobs_are_kept_and_not_changed(tmp_path: Path) -> None:
    first, again, other = edited(), edited(max_instances=50), edited(edges=[["clicks", "store"]])
    graph = parse_graph(first.job, first.tasks, first.edges)
    assert again.parsed.snapshot.job.parent is graph.tables.parent
    assert other.parsed.snapshot.job.parent.tolist() == [0]
    before = copy.deepcopy(graph)
    policies = [ENDPOINT.policy(jobs.bundle(tmp_path / "b")), *map(ENDPOINT.rule, ENDPOINT.rules)]
    for policy in policies:
        policy.decide(first)
    for table, expected in zip(
        (*graph[1:3], *graph.tables), (*before[1:3], *before.tables), strict=True
    ):
        np.testing.assert_array_equal(table, expected)


def test_a_short_history_is_decided_on_and_noted(tmp_path: Path) -> None:
    policy = ENDPOINT.policy(jobs.bundle(tmp_path / "b"))
    (runner, *_) = list(jobs.decisions(1, job="small-1"))
    for given, notes in ((70, 0), (60, 0), (12, 1), (1, 1)):
        found = policy.decide(jobs.sent(runner, given)).explanation.notes
        assert len(found) == notes
        assert all(f"{given} snapshot" in note for note in found)
    rule = ENDPOINT.rule("flink").decide(jobs.sent(runner, 12))
    assert "12 minutes" in rule.explanation.notes[0]
    before = jobs.sent(runner).snapshots.parallelism[-1]
    assert all(a >= b for a, b in zip(rule.decision.parallelism.values(), before, strict=True))


@pytest.mark.parametrize("limit", [200, 2])
def test_a_job_that_was_never_busy_is_held(tmp_path: Path, limit: int) -> None:
    idle = {name: [[0, 0, 0]] * 3 for name in ("busy_ms_per_s", "busy_max_ms_per_s")}
    state = edited(max_instances=limit, **idle)
    found = ENDPOINT.policy(jobs.bundle(tmp_path / "b")).decide(state)
    assert found.decision.parallelism == plan()


def test_missing_minutes_are_not_present() -> None:
    state = edited(minutes_ago=[4.2, 1.9, 0])
    view = observe_snapshot(state.parsed.snapshot, 6)
    assert view.times[:, PRESENT].tolist() == [0, 1, 0, 1, 0, 1]
    assert np.isfinite(view.snapshots).all()
    assert state.parsed.reported(6) == 3
    later = edited(minutes_ago=[0.4, 0.2, 0])  # all in one minute: the last counts
    assert later.parsed.snapshot.metrics.shape[0] == 1
    assert later.parsed.snapshot.metrics[0, 0, 2] == pytest.approx(0.489)


def test_what_sources_do_not_report_is_derived_and_noted() -> None:
    lacking: Any = copy.deepcopy(EXAMPLE["snapshots"])
    for row in range(3):
        for name in ("busy_ms_per_s", "busy_max_ms_per_s", "records_in_per_s"):
            lacking[name][row][0] = None
    state = edited(**lacking)
    found = state.parsed.snapshot.metrics
    assert found[2, 0, cols.BUSY] == found[2, 0, cols.HOT_BUSY] == pytest.approx(0.301)
    np.testing.assert_allclose(found[:, :, cols.IN_RATE], ARRIVED, rtol=1e-6)
    assert [note.split(" of ")[0] for note in state.parsed.notes] == ["busy time"]
    np.testing.assert_array_equal(found[:, 1:], edited().parsed.snapshot.metrics[:, 1:])
    unknown = edited(pending_records=[[None, 0, 0]] * 3)
    assert unknown.parsed.notes == ("pending records of clicks not reported",)
    assert unknown.parsed.backlog == (0.0, 0.0)


# A source reads 4,900 a second; then 380 and 485 more wait with every second. Others count theirs.
ARRIVED = 60 * np.array([[4900, 4890, 1220], [4920 + 380, 4910, 1230], [4915 + 485, 4915, 1228]])


def test_records_are_counted_as_by_flink() -> None:
    """Sources count no records in; the others' records out are those they emit."""
    metrics = edited().parsed.snapshot.metrics
    np.testing.assert_allclose(metrics[:, :, cols.IN_RATE], ARRIVED, rtol=1e-6)
    processed = ARRIVED.copy()
    processed[:, 0] = [60 * 4900, 60 * 4920, 60 * 4915]
    np.testing.assert_allclose(metrics[:, :, cols.OUT_RATE], processed, rtol=1e-6)
    job = edited().parsed.snapshot.job
    np.testing.assert_allclose(job.ratio, [14715 / 14735, 3678 / 14715], rtol=1e-6)
    given = edited(records_processed_per_s=[[10, 20, 30]] * 3).parsed.snapshot.metrics
    np.testing.assert_allclose(given[:, :, cols.OUT_RATE], [[600, 1200, 1800]] * 3)


@pytest.mark.parametrize("name", ENDPOINT.rules)
def test_rules_equal_those_of_the_episode(name: str) -> None:
    """Without noise; in the first hour the rule of an episode has nothing to compare with."""
    settings = StreamScalingSettings(
        job="small-1", metric_noise=0.0, history=80, minutes=280, decide_every_min=1
    )
    setup, baseline = build_setup(settings), BASELINES[name]
    trace = run_baseline(baseline, settings, setup, 2, record=True).parallelism
    assert trace is not None
    rule, interval = ENDPOINT.rule(name), int(baseline.parameters["interval_min"])
    changes = {m for m in range(1, len(trace)) if (trace[m] != trace[m - 1]).any()}
    runner = EpisodeRunner(settings, setup, 2)
    hold = np.full(1 + len(runner.parallelism), HOLD, np.float32)
    acted = 0
    while not runner.over:
        minute, (constants, state, _) = runner.minute, runner.episode
        if minute > 60 and minute % interval == 0 and (minute in changes or minute % 10 == 0):
            decision = rule.decide(jobs.sent(runner, 80)).decision
            assert [*decision.parallelism.values()] == trace[minute].tolist(), minute
            acted += decision.act
        rescale(setup.tables, constants, state, trace[minute].copy())
        runner.decide(hold)
    assert acted == len({minute for minute in changes if minute > 60}) > 1


def test_a_rule_waits_after_a_restart() -> None:
    for since, held in ((2, True), (30, False)):
        found = ENDPOINT.rule("ds2").decide(edited(minutes_since_restart=since))
        assert found.decision.act != held
        assert ("too soon" in found.explanation.summary) == held


def test_decisions_name_every_task_and_vertex() -> None:
    decision = to_decision(edited(), plan(sessions=6))
    assert decision.model_dump(mode="json") == {
        "act": True,
        "parallelism": {"clicks": 2, "sessions": 6, "store": 1},
        "requirements": {
            vertex: {"parallelism": {"lowerBound": 1, "upperBound": count}}
            for vertex, count in (
                ("clicks", 2),
                ("cbc357ccb763df2852fee8c4fc7d55f2", 6),
                ("store", 1),
            )
        },
    }
    assert not to_decision(edited(), plan()).act


@pytest.mark.parametrize(
    ("allowed", "most", "expected"),
    [
        ({}, 200, plan(clicks=1, sessions=9, store=3)),
        ({"task sessions": 6.9}, 200, plan(clicks=1, sessions=6, store=3)),  # towards the present
        ({"task clicks": 1.1}, 200, plan(sessions=9, store=3)),
        ({"task clicks": 2, "task sessions": 0.2}, 200, plan(sessions=1, store=3)),
        ({"task clicks": 2}, 13, plan(sessions=9, store=2)),  # the last rise is reduced
        ({"task clicks": 2}, 5, plan()),  # the limit is exceeded already
    ],
)
def test_constrained_decisions_can_be_carried_out(
    allowed: dict[str, float], most: int, expected: dict[str, int]
) -> None:
    state = edited(max_instances=most)
    found = ENDPOINT.constrain(
        state, to_decision(state, plan(clicks=1, sessions=9, store=3)), allowed
    )
    assert found == to_decision(state, expected)
    assert ENDPOINT.validate_decision(state, found) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parallelism": {"clicks": 2}}, "expected all"),
        ({"parallelism": plan(clicks=9)}, "at most 8"),
        ({"parallelism": plan(sessions=30, store=30)}, "at most 40"),
        ({"act": True}, "do not fit"),
    ],
)
def test_impossible_decisions_are_found(changes: dict[str, Any], words: str) -> None:
    state = edited(max_instances=40)
    decision = to_decision(state, plan()).model_copy(update=changes)
    assert words in str(ENDPOINT.validate_decision(state, decision))


def test_quantities_have_the_backlog_of_the_job() -> None:
    state = edited()
    found = ENDPOINT.quantities(state, to_decision(state, plan(sessions=6)))
    assert [one[:3] for one in found] == [
        ("task clicks", 2, 2), ("task sessions", 4, 6), ("task store", 1, 1),
    ]  # fmt: skip
    rate = (4900 + 5300 + 5400) / 3  # records a second
    for one in found:
        assert one.backlog_s == pytest.approx(63900 / rate)
        assert one.backlog_growth == pytest.approx((63900 - 12000) / 120 / rate)


def test_agreement_is_the_closeness_of_quantities() -> None:
    state = edited()
    held, other = to_decision(state, plan()), to_decision(state, plan(sessions=8))
    assert ENDPOINT.agreement(held, held) == 1
    assert ENDPOINT.agreement(held, other) == ENDPOINT.agreement(other, held)
    assert ENDPOINT.agreement(held, other) == pytest.approx((1 + 0.5 + 1) / 3)


def test_features_and_rewards() -> None:
    found = ENDPOINT.features(edited())
    assert found["instances"] == 7
    assert found["busy"] == pytest.approx((2 * 0.301 + 4 * 0.962 + 0.25) / 7, rel=1e-5)
    outcome = ENDPOINT.outcome(job="a", latency_s=30, utilisation=0.5)
    assert ENDPOINT.reward(outcome) == pytest.approx(-0.7 * 0.5 + 0.3 * 0.5)


def test_examples_are_those_of_the_simulator(tmp_path: Path) -> None:
    policy = ENDPOINT.policy(jobs.bundle(tmp_path / "b"))
    sizes = {}
    for name, state in examples().items():
        sizes[name] = len(state.tasks), len(state.snapshots.minutes_ago)
        for decides in (policy, *map(ENDPOINT.rule, ENDPOINT.rules)):
            proposal = decides.decide(state)
            assert ENDPOINT.validate_decision(state, proposal.decision) is None
    assert sizes == {"tiny": (3, 3), "small": (10, 61), "large": (57, 61)}
    assert policy.decide(examples()["small"]).decision.act


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(InputError, match="flink"):
        ENDPOINT.rule("flnk")
