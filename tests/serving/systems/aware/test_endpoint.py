"""AWARE's endpoint: states give the simulator's observation and the decisions of an episode."""

import copy
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from loadmaster.envs.errors import InputError
from loadmaster.envs.pod_scaling import state as cols
from loadmaster.envs.pod_scaling.calibration import tuned_baseline
from loadmaster.envs.pod_scaling.episode import build_setup
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.envs.pod_scaling.snapshot import plan_of_rule, snapshot_of
from loadmaster.serving.decisions.guard import Guard, GuardSettings
from loadmaster.serving.decisions.request import FALLBACK, UNKNOWN, Decided, to_json
from loadmaster.serving.system import Policy, Profile, find_endpoint
from loadmaster.serving.systems.aware.examples import examples, state_of
from loadmaster.serving.systems.aware.schema import (
    EXAMPLE,
    AwareOutcome,
    AwareState,
    set_values,
    to_decision,
)
from loadmaster.serving.systems.aware.system import ENDPOINT, AwareEndpoint, BundlePolicy
from loadmaster.serving.worker.worker import PolicyRunner
from tests.models.aware.parts import policy_of
from tests.serving.systems.aware.fake import FakePolicy

PLAN = ("replicas", "cpu_m", "memory_mib")
SETTINGS = PodScalingSettings(
    application="imageResize+S3Write", workload="bursty-like", steps=40, missing_metrics=0.2
)


def edited(**changes: Any) -> AwareState:
    """The example by hand with other values; a name such as `reports__pods` is a path."""
    state: Any = copy.deepcopy(EXAMPLE)
    for path, value in changes.items():
        *outer, last = path.split("__")
        inside = state
        for key in outer:
            inside = inside[key]
        inside[last] = value
    return AwareState.model_validate(state)


def runners() -> Any:
    """An episode before each decision; plans are drawn."""
    rng = np.random.default_rng(1)
    runner = EpisodeRunner(SETTINGS, build_setup(SETTINGS), 3)
    while not runner.over:
        yield runner
        runner.decide(rng.uniform(-0.6, 0.6, 3).astype(np.float32))


def sent(runner: EpisodeRunner) -> AwareState:
    """The state of an episode after its way through JSON."""
    return AwareState.model_validate_json(state_of(runner).model_dump_json())


def test_states_give_the_observation_of_the_simulator() -> None:
    for runner in runners():
        found = sent(runner).parsed
        np.testing.assert_allclose(found.observation, runner.view.state, rtol=1e-6, atol=1e-6)
        assert not found.notes


@pytest.mark.parametrize("name", ENDPOINT.rules)
def test_rules_decide_as_on_the_snapshot_of_the_episode(name: str) -> None:
    rule, acted = ENDPOINT.rule(name), 0
    baseline = tuned_baseline(name, PodScalingSettings())
    for runner in runners():
        state = sent(runner)
        expected = plan_of_rule(snapshot_of(runner.setup.constants, runner.episode.state), baseline)
        decision = rule.decide(state).decision
        assert ENDPOINT.validate_decision(state, decision) is None
        assert decision.replicas == expected[cols.REPLICAS]
        assert decision.cpu_m == pytest.approx(1000 * expected[cols.CPU], abs=0.51)
        assert decision.memory_mib == pytest.approx(expected[cols.MEMORY], abs=0.51)
        acted += decision.act
    assert acted > 3 or name == "static"


def test_decisions_of_a_bundle_equal_those_of_the_episode() -> None:
    served, own = BundlePolicy(FakePolicy()), FakePolicy()
    kept = remembered = None
    for runner in runners():
        state = sent(runner)
        proposal = served.decide(state, kept)
        tables = cols.SimState(*(table.copy() for table in runner.episode.state))
        expected = own.decide(runner.setup.constants, tables, remembered)
        kept, remembered = proposal.memory, expected.memory
        np.testing.assert_allclose(kept, remembered, rtol=1e-5)
        assert proposal.decision.replicas == expected.plan[cols.REPLICAS]
        assert proposal.decision.cpu_m == pytest.approx(1000 * expected.plan[cols.CPU], abs=0.51)
        assert proposal.explanation.notes == ("a note",)
        assert state.parsed.snapshot.plan[cols.REPLICAS] == state.plan.replicas, "not changed"


def test_a_plan_that_is_not_finite_is_refused() -> None:
    class Broken(FakePolicy):
        def decide(self, *given: Any) -> Any:
            found = super().decide(*given)
            found.plan[:] = np.nan
            return found

    with pytest.raises(FloatingPointError):
        BundlePolicy(Broken()).decide(edited())


def test_nulls_leave_a_row_without_metrics_and_keep_its_pods() -> None:
    state = edited(reports__pods=[3, 3, 4, 4, 4], reports__ready=[3, 3, 3, 3, None])
    table = state.parsed.snapshot.reports
    assert table[:, cols.R_SEEN].tolist() == [1, 1, 0, 1, 0]
    assert table[2, [cols.R_PODS, cols.R_READY]].tolist() == [4, 3]
    assert np.isnan(table[4, [cols.R_PODS, cols.R_READY]]).all()
    assert table[3, cols.R_USED_CORES] == pytest.approx(1.29)
    assert state.parsed.observation[3] == pytest.approx(3 / 4), "of the newest report"
    assert state.parsed.observation[12] == pytest.approx(0.5), "its age in control steps"


def test_reports_are_laid_out_by_their_ages() -> None:
    """Rows between are missing; of two in one interval the later counts."""
    table = edited(reports__age_s=[3700, 3580, 61, 59, 2]).parsed.snapshot.reports
    assert len(table) == 240
    assert np.flatnonzero(table[:, cols.R_SEEN]).tolist() == [0, 235, 239]
    assert table[235, cols.R_USED_CORES] == pytest.approx(1.29)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"plan__replicas": 25}, "replicas of the plan is 25, outside of its bounds 1 to 20"),
        ({"plan__cpu_m": 100}, "cpu_m of the plan is 100"),
        ({"reports__disk_mb_s": None}, "disk_mb_s not reported: taken as 0"),
        ({"reports__ready": [3, 3, 3, 3, 4]}, "more pods ready than there are"),
        ({"steps__p99_s": [0.2, None]}, "p99 of 1 steps with requests not reported"),
        ({"reports__age_s": [4000, 48, 33, 18, 3]}, "reports older than an hour are not used"),
    ],
)
def test_what_is_unusual_is_noted(changes: dict[str, Any], note: str) -> None:
    state = edited(**changes)
    for decides in (BundlePolicy(FakePolicy()), ENDPOINT.rule("hpa")):
        proposal = decides.decide(state)
        assert note in proposal.explanation.notes[0]
        assert ENDPOINT.validate_decision(state, proposal.decision) is None


def test_an_unknown_p99_is_that_of_the_step_before() -> None:
    found = edited(steps__requests=[9, 5, 0, 7], steps__p99_s=[None, 0.2, None, None],
                   steps__restarts=[0] * 4).parsed.snapshot  # fmt: skip
    assert found.p99_s.tolist() == [0.3, 0.2, 0.0, 0.2]


def test_rules_move_a_plan_into_its_bounds() -> None:
    state = edited(plan={"replicas": 25, "cpu_m": 100, "memory_mib": 4000})
    decision = ENDPOINT.rule("hpa").decide(state).decision
    assert (decision.replicas, decision.cpu_m, decision.memory_mib) == (20, 128, 3072)


def test_limits_that_change_are_whole_numbers() -> None:
    state = edited(plan={"replicas": 3, "cpu_m": 333.3, "memory_mib": 512})
    held = to_decision(state, np.array([0.3333, 512.0, 3.0]))
    assert not held.act
    assert held.cpu_m == 333.3
    found = to_decision(state, np.array([0.40049, 600.7, 4.0]))
    assert (found.act, found.cpu_m, found.memory_mib, found.replicas) == (True, 400, 601, 4)
    narrow = edited(bounds__cpu_m=[128.4, 400.2], plan__cpu_m=300)
    assert to_decision(narrow, np.array([0.1284, 512.0, 3.0])).cpu_m == 128.4
    assert to_decision(narrow, np.array([0.4002, 512.0, 3.0])).cpu_m == 400
    beyond = to_decision(narrow, np.array([0.4009, 512.0, 3.0]))
    assert "cpu_m is 400.9" in str(ENDPOINT.validate_decision(narrow, beyond))


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ({}, (6, 700, 900)),
        ({"replicas": 4.9}, (4, 700, 900)),  # towards the present
        ({"cpu_m": 510.5, "memory_mib": 400}, (6, 510.5, 400)),
        ({"replicas": 30, "cpu_m": 9999, "memory_mib": 1}, (20, 2048, 256)),  # within the bounds
    ],
)
def test_constrained_decisions_can_be_carried_out(
    allowed: dict[str, float], expected: tuple[float, ...]
) -> None:
    state = edited()
    found = ENDPOINT.constrain(state, set_values(state, 6, 700, 900), allowed)
    assert (found.replicas, found.cpu_m, found.memory_mib) == expected
    assert ENDPOINT.validate_decision(state, found) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"replicas": 21}, "replicas is 21; expected 1 to 20"),
        ({"cpu_m": 127.0}, "expected 128 to 2048"),
        ({"memory_mib": 4000.0}, "memory_mib is 4000"),
        ({"act": False}, "act does not fit"),
    ],
)
def test_impossible_decisions_are_found(changes: dict[str, Any], words: str) -> None:
    state = edited()
    decision = set_values(state, 4, 500, 512).model_copy(update=changes)
    assert words in str(ENDPOINT.validate_decision(state, decision))
    assert ENDPOINT.validate_decision(state, set_values(state, 3, 500, 512)) is None


def test_quantities_have_limits_of_their_own_kind() -> None:
    state = edited()
    quantities = ENDPOINT.quantities(state, set_values(state, 9, 900, 1000))
    assert [one[:3] for one in quantities] == [
        ("replicas", 3, 9), ("cpu_m", 500, 900), ("memory_mib", 512, 1000),
    ]  # fmt: skip
    guard = Guard(GuardSettings(maximum=8, step=4, total=6))
    assert guard.apply(quantities, 0.0).allowed == {"replicas": 6}
    limits = {"cpu_m": {"step": 100}, "memory_mib": {"total": 600}}
    guard = Guard(GuardSettings.model_validate({"factor": 1.5, "kinds": limits}))
    assert guard.apply(quantities, 0.0).allowed == {
        "replicas": 4.5, "cpu_m": 600, "memory_mib": 600,
    }  # fmt: skip
    assert {one.kind for one in quantities} == {"", *ENDPOINT.kinds}


def test_agreement_is_the_closeness_of_quantities() -> None:
    state = edited()
    held, other = set_values(state, 3, 500, 512), set_values(state, 6, 400, 512)
    assert ENDPOINT.agreement(held, held) == 1
    assert ENDPOINT.agreement(held, other) == ENDPOINT.agreement(other, held)
    assert ENDPOINT.agreement(held, other) == pytest.approx((0.5 + 0.8 + 1) / 3)


def test_features_are_observed() -> None:
    found = ENDPOINT.features(edited(steps__restarts=[0, 3]))
    assert found["cpu_use"] == pytest.approx(1310 / 1500)
    assert found["memory_use"] == pytest.approx(934 / 1536)
    assert found["slo_slack"] == pytest.approx(np.log(0.3 / 0.34), rel=1e-5)
    assert found["load"] == pytest.approx(np.log1p(2660 / 60) / 6)
    assert found["restarts"] == 1
    assert found["replicas"] == 3
    rate = {name: ENDPOINT.retraining({"load": np.log1p(name) / 6}) for name in (0.5, 20.0)}
    assert rate == {
        0.5: {"load": "low", "load_scale": 1.0}, 20.0: {"load": "high", "load_scale": 2.0},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("p99_s", "expected"), [(0.3, 1.0 + 0.5), (0.6, 0.5 + 0.5), (None, 1.0 + 0.5)]
)
def test_rewards_are_those_of_the_environment(p99_s: float | None, expected: float) -> None:
    outcome = AwareOutcome(p99_s=p99_s, slo_s=0.3, cpu_use=0.6, memory_use=0.4, restarts=0)
    assert ENDPOINT.reward(outcome) == pytest.approx(expected)
    runner = next(runners())
    runner.decide(np.zeros(3, np.float32))
    last = runner.result("fake")
    made = AwareOutcome(
        p99_s=last.p99_s[-1], slo_s=last.slo_s[-1], cpu_use=last.cpu_use[-1],
        memory_use=last.memory_use[-1],
    )  # fmt: skip
    assert ENDPOINT.reward(made) == pytest.approx(last.rewards[-1])


def test_examples_are_those_of_the_simulator() -> None:
    sizes = {}
    for name, state in examples().items():
        sizes[name] = len(state.reports.age_s), len(state.steps.requests)
        for decides in (BundlePolicy(FakePolicy()), *map(ENDPOINT.rule, ENDPOINT.rules)):
            proposal = decides.decide(state)
            assert ENDPOINT.validate_decision(state, proposal.decision) is None
    assert sizes == {"tiny": (5, 2), "small": (80, 20), "large": (240, 60)}


def test_a_short_history_is_noted() -> None:
    notes = ENDPOINT.rule("hpa").decide(edited()).explanation.notes
    assert notes == (
        "1.25 minutes of reports: hpa uses up to 5",
        "hpa removes no pods with less than 5 of them",
    )
    assert ENDPOINT.rule("hpa").decide(examples()["small"]).explanation.notes == ()


def test_extreme_states_are_refused_or_decided_on() -> None:
    """Values far from those of any application; all decisions can be carried out."""
    rng, values = random.Random(5), [0, 1e-9, 1, 20, 1e5, 1e12, None]
    learned = BundlePolicy(policy_of(size=1.0))
    policies = [learned, BundlePolicy(FakePolicy()), *map(ENDPOINT.rule, ENDPOINT.rules)]
    decided = 0
    for _ in range(150):
        state: Any = copy.deepcopy(EXAMPLE)
        state["slo_s"] = rng.choice([1e-300, 0.3, 1e6])
        state["bounds"] = {name: sorted(rng.choices([1, 9, 700, 10_000], k=2)) for name in PLAN}
        state["plan"] = {name: rng.choice([1, 9, 700, 10_000]) for name in PLAN}
        for part in rng.choices(["reports", "steps"], k=4):
            column = rng.choice([name for name in state[part] if name != "age_s"])
            state[part][column][-1] = rng.choice(values)
        try:
            valid = AwareState.model_validate(state)
        except ValidationError:
            continue
        assert np.isfinite(list(ENDPOINT.features(valid).values())).all()
        for policy in policies:
            assert ENDPOINT.validate_decision(valid, policy.decide(valid).decision) is None
        decided += 1
    assert 50 < decided < 150


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(InputError, match="hpa"):
        ENDPOINT.rule("hp")


def test_the_endpoint_is_found_by_its_reference() -> None:
    reference = "loadmaster.serving.systems.aware.system:ENDPOINT"
    assert find_endpoint("aware", reference) is ENDPOINT


def test_profile_implies_the_reward_of_its_targets() -> None:
    full = Profile(utilisation={"cpu": 0.6, "memory": 0.8})
    assert ENDPOINT.complete(full).reward == pytest.approx(1.0 + 0.5 * (0.6 + 0.8))
    assert ENDPOINT.complete(Profile(utilisation={"cpu": 0.6})).reward is None


def test_the_rule_acts_for_unknown_applications(tmp_path: Path) -> None:
    class Unknown(FakePolicy):
        def decide(self, *given: Any) -> Any:
            return super().decide(*given)._replace(unknown="unlike others")

    class UnknownEndpoint(AwareEndpoint):
        def policy(self, folder: Path) -> Policy:
            return BundlePolicy(Unknown())

    runner, raw = PolicyRunner(UnknownEndpoint(), "hpa"), to_json({"state": EXAMPLE})
    decided = runner.decide(raw, "1", str(tmp_path))
    assert isinstance(decided, Decided)
    assert (decided.source, decided.cause, decided.policy["name"]) == (FALLBACK, UNKNOWN, "hpa")
    assert decided.decision == ENDPOINT.rule("hpa").decide(edited()).decision.model_dump()
    assert "unlike others" in decided.reason["notes"]
    proposed = runner.propose(raw, "1", str(tmp_path))
    assert decided.memory == proposed.memory != "", "the policy still learns the application"
    own = BundlePolicy(FakePolicy()).decide(edited()).decision.model_dump()
    assert proposed.decision == own, "a shadow shows the policy's own decision"


def test_no_example_is_unknown() -> None:
    policy = BundlePolicy(policy_of(size=0))
    assert not any(policy.decide(state).unknown for state in examples().values())
