"""Decima's endpoint: observations, legal decisions, explanations, features."""

import math
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from loadmaster.envs.dag_scheduling.observation import Observation, observe
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.snapshot import state_from_snapshot
from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.models.decima.policy import DecimaPolicy
from loadmaster.serving.system import Policy
from loadmaster.serving.systems.decima.examples import busy_cluster, examples
from loadmaster.serving.systems.decima.records import ROUND_MAX
from loadmaster.serving.systems.decima.rounds import ServedPolicy
from loadmaster.serving.systems.decima.schema import Assignment, DecimaDecision, DecimaState
from loadmaster.serving.systems.decima.system import ENDPOINT
from loadmaster.serving.worker.worker import PolicyRunner
from tests.bundles import make_bundle
from tests.serving.systems.decima.episodes import EPISODES, by_rule, rounds

pytestmark = pytest.mark.slow

TINY = examples()["tiny"]
SMALL = examples()["small"]


def untrained() -> ServedPolicy:
    torch.manual_seed(4)
    return ServedPolicy(DecimaPolicy(DecimaNetwork(), "untrained"))


def one_job(count: int, free: int, *stages: dict[str, Any], id: str = "j") -> DecimaState:
    """A cluster with one job."""
    job = {"id": id, "stages": [{"task_ms": 1.0, **stage} for stage in stages]}
    return DecimaState.model_validate(
        {"executors": [{"count": count, "free": free}], "jobs": [job]}
    )


def assign(*given: tuple[str, str, int], idle: int = 0, limit: int = 9) -> DecimaDecision:
    parts = (Assignment(job=j, stage=s, executors=e, limit=limit) for j, s, e in given)
    return DecimaDecision(assignments=tuple(parts), idle=idle)


@pytest.fixture(scope="module")
def deciders() -> list[Policy]:
    return [untrained(), *(ENDPOINT.rule(name) for name in ENDPOINT.rules)]


@st.composite
def states(draw: st.DrawFn) -> dict[str, Any]:
    """Small clusters with random numbers, many of them inconsistent."""

    def one_of(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    executors = [
        {"count": draw(st.integers(4, 12)), "free": draw(st.integers(0, 4)), "memory": kind / 2}
        for kind in range(1, draw(st.integers(1, 3)) + 1)
    ]
    jobs = []
    for number in range(draw(st.integers(1, 3))):
        stages: list[dict[str, Any]] = []
        for place in range(draw(st.integers(1, 4))):
            parents = [str(other) for other in range(place) if one_of(True, False, False)]
            finished = 0 if parents else one_of(0, 0, 2)
            started = finished + one_of(0, 0, 0, 0, 0, 1)
            tasks = started + draw(st.integers(0 if started else 1, 5))
            stages.append({
                "id": str(place), "tasks": tasks, "started": started, "finished": finished,
                "parents": parents, "task_ms": draw(st.floats(0, 1e5)),
                "memory": one_of(0.0, 0.6, 1.0), "moving": one_of(0, 0, 1),
                "promised": one_of(0, 0, 1), "chosen": one_of(False, False, True),
            })  # fmt: skip
        jobs.append({"id": str(number), "stages": stages})
    source = one_of({}, {"job": "0"}, {"job": "0", "stage": "0"})
    more = {"more_to_come": one_of(True, False), "ask": one_of("round", "one")}
    return {"executors": executors, "jobs": jobs, "source": source, **more}


@settings(max_examples=150, deadline=None)
@given(state=states(), bound=st.integers(0, 6))
def test_decisions_are_legal_also_after_constrain(
    deciders: list[Policy], state: dict[str, Any], bound: int
) -> None:
    try:
        parsed = DecimaState.model_validate(state)
    except ValidationError:
        return  # inconsistent
    for decider in deciders:
        proposal = decider.decide(parsed)
        decision = proposal.decision
        assert ENDPOINT.validate_decision(parsed, decision) is None
        assert proposal.explanation.summary
        before = ENDPOINT.quantities(parsed, decision)
        allowed = {quantity.name: max(float(bound), quantity.current) for quantity in before}
        bounded = ENDPOINT.constrain(parsed, decision, allowed)
        assert ENDPOINT.validate_decision(parsed, bounded) is None
        for name, _, proposed, *_ in ENDPOINT.quantities(parsed, bounded):
            assert proposed <= allowed[name]
        assert bounded.undecided == decision.undecided


def test_foreign_bundles_and_unknown_rules_are_refused(root: Path) -> None:
    with pytest.raises(InputError, match="bundle of 'das'; expected 'decima'"):
        ENDPOINT.policy(root / "models" / "pretrained" / "das-small")
    with pytest.raises(InputError, match="unknown rule 'fare'; did you mean 'fair'"):
        ENDPOINT.rule("fare")


def test_network_without_limits_explains_stages_only(tmp_path: Path) -> None:
    policy = ENDPOINT.policy(make_bundle(tmp_path / "bundle", limits=False))
    assert set(policy.decide(TINY).explanation.choices) == {"stage"}


def test_explanation_uses_the_ids_of_the_state(root: Path) -> None:
    policy = ENDPOINT.policy(root / "models" / "pretrained" / "decima-stream")
    proposal = policy.decide(TINY)
    stages, limits = proposal.explanation.choices["stage"], proposal.explanation.choices["limit"]
    names = [choice.name for choice in stages]
    assert names == ["job daily-report, stage join", "job ad-hoc-4711, stage scan"]
    assert proposal.decision.assignments[0].stage == "join"
    for choices in (stages, limits):
        chances = [choice.probability for choice in choices]
        assert chances == sorted(chances, reverse=True)
        assert math.isclose(sum(chances), 1.0)
        ratio = math.exp(choices[1].score - choices[0].score)
        assert math.isclose(chances[1] / chances[0], ratio, rel_tol=1e-4)
    assert "then job ad-hoc-4711, stage scan gets 1 executor" in proposal.explanation.summary


def test_explanation_of_long_ids_stays_small() -> None:
    state = one_job(9, 9, {"id": "y" * 200, "tasks": 9}, id="x" * 200)
    explanation = untrained().decide(state).explanation
    assert len(explanation.summary) < 400
    assert len(explanation.choices["limit"]) == 5
    assert all(len(choice.name) < 100 for choice in explanation.choices["stage"])


def test_executors_beyond_the_largest_round_are_undecided() -> None:
    state = one_job(500, 500, *({"id": str(n), "tasks": 1} for n in range(ROUND_MAX + 10)))
    decision = ENDPOINT.rule("fifo").decide(state).decision
    assert len(decision.assignments) == ROUND_MAX
    assert decision.undecided == 500 - ROUND_MAX
    assert ENDPOINT.validate_decision(state, decision) is None


def test_idling_is_refused_where_no_event_would_follow() -> None:
    """One free executor, and two jobs with a promised executor each."""
    stages = [{"id": "s", "tasks": 5, "task_ms": 1.0, "promised": 1}]
    jobs = [{"id": name, "stages": stages, "promised": 1} for name in "ab"]
    for more in (True, False):
        cluster = {"executors": [{"count": 2, "free": 1}], "jobs": jobs, "more_to_come": more}
        decision = ENDPOINT.rule("fair").decide(DecimaState.model_validate(cluster)).decision
        given = [(one.job, one.executors) for one in decision.assignments]
        assert (given, decision.idle) == (([], 1) if more else ([("a", 1)], 0))


def test_executors_idle_without_a_schedulable_stage(deciders: list[Policy]) -> None:
    running = {"id": "a", "tasks": 2, "started": 2, "memory": 1.0}
    state = one_job(5, 2, running, {"id": "b", "tasks": 2, "memory": 9.0, "parents": ["a"]})
    for decider in deciders:
        proposal = decider.decide(state)
        assert proposal.decision == DecimaDecision(idle=2)
        assert "2 left idle" in proposal.explanation.summary


def test_overflow_of_the_network_raises() -> None:
    network = DecimaNetwork()
    with torch.no_grad():
        for weights in network.parameters():
            weights.fill_(1e30)
    with pytest.raises(FloatingPointError, match="not finite"):
        ServedPolicy(DecimaPolicy(network)).decide(SMALL)


def test_ids_may_contain_the_names_of_numbers_that_are_not_finite() -> None:
    state = one_job(5, 2, {"id": "Infinity", "tasks": 2}, id="NaN")
    decided = PolicyRunner(ENDPOINT, ENDPOINT.rules[0]).decide_by_rule(state)
    assert decided.decision["assignments"][0]["job"] == "NaN"


def test_decisions_do_not_depend_on_earlier_states() -> None:
    policy, sizes = untrained(), [(2, 3, 8), (60, 5, 300), (3, 4, 20), (5, 40, 30), (2, 3, 8)]
    for jobs, stages, executors in sizes:
        state = busy_cluster(jobs, stages, executors, free=2, seed=jobs)
        assert policy.decide(state) == untrained().decide(state)


def test_quantities_count_free_executors_once_assigned() -> None:
    decision = assign(("daily-report", "join", 2), ("ad-hoc-4711", "scan", 1))
    quantities = (("job daily-report", 0.0, 2.0), ("job ad-hoc-4711", 4.0, 5.0))
    assert tuple(one[:3] for one in ENDPOINT.quantities(TINY, decision)) == quantities


BOTH = assign(("j", "first", 3), ("j", "second", 3))


@pytest.mark.parametrize(
    ("most", "left"),
    [
        (99, BOTH),
        (6, BOTH),
        (4.7, assign(("j", "first", 3), ("j", "second", 1), limit=4, idle=2)),
        (2, assign(("j", "first", 2), limit=2, idle=4)),
        (0, assign(idle=6)),
        (-3, assign(idle=6)),
    ],
)
def test_constrain_cuts_the_last_assignments_first(most: float, left: DecimaDecision) -> None:
    state = one_job(9, 6, {"id": "first", "tasks": 3}, {"id": "second", "tasks": 3})
    assert ENDPOINT.constrain(state, BOTH, {"job j": most}) == left


CHAIN = one_job(3, 3, {"id": "a", "tasks": 2}, {"id": "b", "tasks": 2, "parents": ["a"]})


@pytest.mark.parametrize(
    ("state", "decision", "words"),
    [
        (TINY, assign(("gone", "join", 3)), "no job 'gone'"),
        (TINY, assign(("daily-report", "gone", 3)), "no stage 'gone'"),
        (TINY, assign(("ad-hoc-4711", "sum", 1), idle=2), "may not be chosen"),
        (TINY, assign(("daily-report", "read", 1), idle=2), "may not be chosen"),
        (TINY, assign(*[("daily-report", "join", 1)] * 2, idle=1), "may not be chosen"),
        (TINY, assign(("daily-report", "join", 3)), "at most 2"),
        (TINY, assign(("ad-hoc-4711", "scan", 4)), "the 3 free ones"),
        (TINY, assign(idle=2), "the 3 free ones"),
        # A stage is schedulable once its parents have all their executors.
        (CHAIN, assign(("j", "a", 2), ("j", "b", 1)), "None"),
        (CHAIN, assign(("j", "b", 1), ("j", "a", 2)), "may not be chosen"),
    ],
)
def test_validate_decision(state: DecimaState, decision: DecimaDecision, words: str) -> None:
    assert words in str(ENDPOINT.validate_decision(state, decision))


def test_features_by_hand() -> None:
    waiting_s, work_s = 2 * 2.4 + 13 * 0.3105 + 0.15, 12 * 0.9 + 2 * 2.4 + 20 * 0.3105 + 0.15
    assert ENDPOINT.features(TINY) == pytest.approx({
        "executors": 8, "jobs": 2, "stages": 3, "free_share": 3 / 8, "executors_per_job": 2,
        "waiting_s": waiting_s / 8, "task_s": work_s / 35, "job_work_s": work_s / 2,
        "youngest_job_s": 6.2,
    })  # fmt: skip


def test_reward_depends_on_ratios() -> None:
    def reward(completion_s: float, work_s: float) -> float:
        outcome = ENDPOINT.outcome(job="a", completion_s=completion_s, work_s=work_s)
        return ENDPOINT.reward(outcome)

    assert reward(10, 100) - reward(20, 100) == pytest.approx(math.log(2))
    assert reward(10, 100) == pytest.approx(reward(20, 400))
    assert math.isfinite(reward(0, 1e-9))


@pytest.mark.parametrize("gap_s", [15.0, 100.0])
def test_retraining_estimates_the_interarrival_time(gap_s: float) -> None:
    stream = {"arrivals": "poisson", "jobs": 40, "interarrival_s": gap_s}
    states = (held.before[0] for held in rounds(stream, 1, by_rule("weighted-fair")))
    seen = [ENDPOINT.features(state) for state in states if state.more_to_come]
    means = {name: sum(each[name] for each in seen) / len(seen) for name in seen[0]}
    assert ENDPOINT.retraining(means)["interarrival_s"] == pytest.approx(gap_s, rel=0.5)


def test_retraining_settings_are_valid() -> None:
    means = {**ENDPOINT.features(SMALL), "jobs": 12.3, "youngest_job_s": 14.0}
    environment = build_settings(DagSchedulingSettings, dict(ENDPOINT.retraining(means)))
    assert environment.arrivals == "poisson"
    assert environment.executors == 50
    assert environment.interarrival_s == pytest.approx(14, rel=0.3)
    assert ENDPOINT.retraining({}) == {"arrivals": "poisson"}
    odd = dict.fromkeys(means, 0.0)
    assert build_settings(DagSchedulingSettings, dict(ENDPOINT.retraining(odd))).executors == 1


@pytest.mark.parametrize("episode", EPISODES)
def test_observations_of_a_snapshot_equal_the_simulators(episode: str) -> None:
    views: list[Observation] = []

    def choose_in_turn(view: Observation) -> tuple[int, int]:
        """So that commitments accumulate."""
        views.append(Observation(*(table.copy() for table in view)))
        legal = np.flatnonzero(view.schedulable[:-1])
        return int(legal[len(views) % len(legal)]), 3

    held = rounds(EPISODES[episode], 5, choose_in_turn)
    states = list(islice(chain.from_iterable(one.before for one in held), 60))
    assert len(states) == 60
    for state, view in zip(states, views, strict=False):
        snapshot = DecimaState.model_validate_json(state.model_dump_json()).snapshot
        again, rows = Observation(*map(np.zeros_like, view)), np.zeros(len(view.stages), np.int64)
        observe(state_from_snapshot(snapshot), snapshot.bank, again, rows)
        for name, table in view._asdict().items():
            np.testing.assert_array_equal(getattr(again, name), table, err_msg=name)
