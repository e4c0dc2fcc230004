"""DAS's endpoint: decisions and explanations of bundles and rules, and the checks of decisions."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.models.das.network import DasNetwork
from loadmaster.models.das.policy import DasPolicy
from loadmaster.models.das.settings import DasSettings
from loadmaster.serving.system import Policy
from loadmaster.serving.systems.das.records import Rank
from loadmaster.serving.systems.das.schema import DasDecision, DasOutcome, DasState
from loadmaster.serving.systems.das.system import ENDPOINT, BundlePolicy
from tests.bundles import make_bundle
from tests.serving.systems.das.clusters import job, machine, placements, states
from tests.serving.systems.das.episodes import PRETRAINED, Episode

JOBS = [
    job("1", 2, 9, {"a": 1}), job("2", 2, 8, {"b": 1}), job("3", 1, 7, instances=2),
    job("4", 2, 6, gpu_type="V100"),
]  # fmt: skip
MACHINES = [machine("a", 2), machine("b", 2, "T4")]
STATE = DasState.model_validate({"machines": MACHINES, "jobs": JOBS})


def decision(wait: int, stop: tuple[str, ...] = (), **start: dict[str, int]) -> DasDecision:
    """`job3={"a": 2}`: job 3 starts with two instances on a."""
    starts = [
        {"job": name.removeprefix("job"), "placements": placements(on)}
        for name, on in start.items()
    ]
    return DasDecision.model_validate({"start": starts, "stop": stop, "wait": wait})


MOVE = decision(2, ("1", "2"), job1={"b": 1}, job4={"a": 1})
RANKED = MOVE.model_copy(update={"ranks": {"3": Rank(key=900, correction=0.5)}})


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (decision(2), "None"),
        (decision(2, ("1",), job3={"a": 2}), "None"),
        (MOVE, "None"),
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
        (RANKED, "None"),
        (RANKED.model_copy(update={"ranks": {"9": Rank(key=1)}}), "ranks: unknown job '9'"),
    ],
)
def test_validate_decision(found: DasDecision, reason: str) -> None:
    assert reason in str(ENDPOINT.validate_decision(STATE, found))


def test_ranks_are_kept_and_do_not_count_in_agreement() -> None:
    assert ENDPOINT.constrain(STATE, RANKED, {"job 4": 0.0}).ranks == RANKED.ranks
    assert ENDPOINT.agreement(RANKED, MOVE) == ENDPOINT.agreement(MOVE, RANKED) == 1
    assert ENDPOINT.agreement(RANKED, decision(2)) == 0


def test_quantities_are_running_jobs() -> None:
    found = [one[:3] for one in ENDPOINT.quantities(STATE, MOVE)]
    assert found == [("job 1", 1, 1), ("job 2", 1, 0), ("job 4", 0, 1)]


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
def test_constrain_drops_what_is_not_allowed(allowed: dict[str, float], left: DasDecision) -> None:
    assert ENDPOINT.constrain(STATE, MOVE, allowed) == left
    assert ENDPOINT.validate_decision(STATE, left) is None


def guided_bundle(folder: Path) -> Path:
    environment = {"max_queue": 5, "history": 3, "guide": "predicted-speed-price"}
    return make_bundle(folder, system="das", environment=environment, opening="rule", process=False)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(state=states())
def test_a_policy_that_corrects_a_rule_starts_as_the_rule(
    policies: list[Policy], state: DasState
) -> None:
    rule = ENDPOINT.rule("predicted-speed-price").decide(state).decision
    if state.ask == "placing again":  # the rule places jobs then; replanning has done so already
        return
    found = policies[0].decide(state).decision
    # With more jobs than it observes, the policy needs the keys of all.
    for name, rank in rule.ranks.items():
        assert found.ranks[name].key == rank.key
    assert found.model_copy(update={"ranks": rule.ranks}) == rule


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> list[Policy]:
    """Untrained networks, one of which preempts and one of which corrects a rule, and all rules."""
    made: list[Path] = [guided_bundle(tmp_path_factory.mktemp("bundles") / "guided")]
    for preempt in (False, True):
        environment = {"max_queue": 5, "history": 3, "preempt": preempt}
        network: dict[str, Any] = {"width": 16, "heads": 2, "process": preempt}
        folder = tmp_path_factory.mktemp("bundles") / "bundle"
        made.append(make_bundle(folder, system="das", environment=environment, **network))
    return [*map(ENDPOINT.policy, made), *map(ENDPOINT.rule, ENDPOINT.rules)]


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(state=states(corrections=(None, 0.0, -3.5, 50.0)), data=st.data())
def test_decisions_are_valid(policies: list[Policy], state: DasState, data: st.DataObject) -> None:
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


def test_reward_decreases_with_completion_time() -> None:
    rewards = [ENDPOINT.reward(DasOutcome(job="1", completion_s=s)) for s in (0, 60, 600, 6000)]
    assert rewards == sorted(rewards, reverse=True)
    assert (rewards[0], rewards[3] > -5) == (0, True)


def state_with(*jobs: dict[str, Any], ask: str = "event", gpus: int = 1) -> DasState:
    """Jobs on one machine."""
    machines = [machine("a", gpus, "T4")]
    return DasState.model_validate({"machines": machines, "jobs": jobs, "ask": ask})


@pytest.fixture(scope="module")
def policy() -> Policy:
    """Agents that correct no rule: the phases of an event are theirs."""
    return ENDPOINT.policy(PRETRAINED / "das-small")


def test_foreign_bundles_and_unknown_rules_are_refused() -> None:
    with pytest.raises(InputError, match="'decima'"):
        ENDPOINT.policy(PRETRAINED / "decima-batch")
    with pytest.raises(InputError, match="did you mean 'las-consolidate'"):
        ENDPOINT.rule("las-consolidat")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["das-small", "das"])
def test_examples_are_cached_and_decided_deterministically(name: str) -> None:
    policy, examples = ENDPOINT.policy(PRETRAINED / name), ENDPOINT.examples()
    sizes = {name: (len(state.machines), len(state.jobs)) for name, state in examples.items()}
    assert sizes == {"small": (8, 20), "large": (128, 150)}
    assert ENDPOINT.examples() is examples
    for state in examples.values():
        proposal = policy.decide(state)
        assert proposal.decision.start
        assert policy.decide(state) == proposal


@pytest.mark.slow
def test_explanation_lists_best_jobs_and_machines(policy: Policy) -> None:
    episode = Episode(PRETRAINED / "das-small", seed=7)
    for _ in range(60):
        state = episode.next_state()
        decision, explanation, *_ = policy.decide(state)
        episode.act()
        options, best = explanation.choices["job"], explanation.choices.get("machine", ())
        assert 1 <= len(options) <= 5
        assert [one.score for one in options] == sorted((o.score for o in options), reverse=True)
        assert all(one.uncertainty and one.uncertainty > 0 for one in (*options, *best))
        assert bool(best) == (state.ask != "reconsidering")
        if best:
            start = decision.start[0]
            assert options[0].name == f"job {start.job}"
            assert start.placements[0].machine == best[0].name
            assert f"job {start.job} starts on {best[0].name}" in explanation.summary


@pytest.mark.slow
def test_compiled_decisions_and_scores_equal_torch() -> None:
    """A network whose machines have a cell each is decided in torch."""
    compiled = DasPolicy.load(PRETRAINED / "das-small")
    network = DasNetwork(compiled.network.settings.model_copy(update={"exact_up_to": 1}))
    network.load_state_dict(compiled.network.state_dict())
    both = BundlePolicy(compiled), BundlePolicy(DasPolicy(network, compiled.trained_in))
    episode = Episode(PRETRAINED / "das-small", seed=8).skip(40)
    threads, several = torch.get_num_threads(), Counter[str]()
    for _ in range(60):
        state = episode.next_state()
        (one, reason, *_), (other, other_reason, *_) = (policy.decide(state) for policy in both)
        episode.act()
        assert (one, reason.summary) == (other, other_reason.summary)
        for kind, options in reason.choices.items():
            others = other_reason.choices[kind]
            scores = [[(o.score, o.uncertainty) for o in each] for each in (options, others)]
            np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-4)
            # Rounding may decide between equal ones.
            if len({round(option.score, 2) for option in options}) == len(options):
                assert [option.name for option in options] == [option.name for option in others]
            several[kind] += len(options) > 1
    assert several["job"] > 20
    assert several["machine"] > 10
    assert torch.get_num_threads() == threads


@pytest.mark.slow
def test_event_explains_first_phase_with_a_choice(policy: Policy) -> None:
    """Job 1 fits on one machine only; then running jobs are reconsidered."""
    jobs = job("0", 1, 90_000, {"a": 1}, running_s=80_000), job("1", 1, 5), job("2", 2, 4)
    choices = [
        policy.decide(state_with(*jobs, ask=ask, gpus=2)).explanation.choices
        for ask in ("event", "placing")
    ]
    found = [{kind: {one.name for one in each} for kind, each in one.items()} for one in choices]
    assert found == [{"job": {"job 0", "job 1", "job 2"}}, {"job": {"job 1"}, "machine": {"a"}}]


@pytest.mark.slow
@pytest.mark.parametrize("exact_up_to", [256, 1], ids=["compiled", "torch"])
def test_nan_weights_raise(exact_up_to: int) -> None:
    network = DasNetwork(DasSettings(width=16, heads=2, exact_up_to=exact_up_to))
    with torch.no_grad():
        network.ordering.rank.weight.fill_(torch.nan)
    trained_in = DasPolicy.load(PRETRAINED / "das-small").trained_in
    policy = BundlePolicy(DasPolicy(network, trained_in, name="broken"))
    with pytest.raises(FloatingPointError, match="'broken'"):
        policy.decide(ENDPOINT.examples()["small"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "state",
    [state_with(), state_with(job("1", on={"a": 1})), state_with(job("1"), ask="reconsidering")],
)
def test_phase_without_anything_to_decide_changes_nothing(policy: Policy, state: DasState) -> None:
    decision, explanation, *_ = policy.decide(state)
    assert (decision.start, decision.stop, explanation.choices) == ((), (), {})
    assert explanation.summary.startswith("nothing starts or stops; ")


@pytest.mark.slow
def test_summary_names_the_job_that_another_is_stopped_for() -> None:
    """LAS: job 2 has attained its share of service, job 3 has not."""
    state = state_with(job("2", 1, 90_000, {"a": 1}, running_s=50_000), job("3", 1, 10))
    decision, explanation, *_ = ENDPOINT.rule("las-consolidate").decide(state)
    assert decision.stop == ("2",)
    assert "job 2 stops for job 3" in explanation.summary
    placing = state.model_copy(update={"ask": "placing"})
    assert ENDPOINT.rule("las-consolidate").decide(placing).decision.stop == ()
