"""Bundles behind the endpoint: examples, explanations, compiled against torch, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.baselines import GIVEN
from loadmaster.envs.gpu_scheduling.decision_state import PHASE
from loadmaster.models.das.network import DasNetwork
from loadmaster.models.das.policy import DasPolicy
from loadmaster.models.das.settings import DasSettings
from loadmaster.models.manifest import read_manifest
from loadmaster.serving.system import Policy, find_endpoint
from loadmaster.serving.systems.das.schema import DasState
from loadmaster.serving.systems.das.snapshot import tables_of
from loadmaster.serving.systems.das.system import ENDPOINT, BundlePolicy
from tests.serving.systems.das.clusters import job, machine
from tests.serving.systems.das.episodes import PRETRAINED, Episode

pytestmark = pytest.mark.slow


def state_with(*jobs: dict[str, Any], ask: str = "event", gpus: int = 1) -> DasState:
    """Jobs on one machine."""
    machines = [machine("a", gpus, "T4")]
    return DasState.model_validate({"machines": machines, "jobs": jobs, "ask": ask})


@pytest.fixture(scope="module")
def policy() -> Policy:
    return ENDPOINT.policy(PRETRAINED / ENDPOINT.pretrained)


def test_registry_and_manifest_name_the_policy(policy: Policy) -> None:
    assert find_endpoint("das") is ENDPOINT
    assert ENDPOINT.rules[0] == "las-consolidate"
    manifest = read_manifest(PRETRAINED / "das-small")
    assert (policy.name, policy.version) == ("das-small", manifest.sha256[:12])


def test_unknown_bundles_and_rules_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'decima'"):
        ENDPOINT.policy(PRETRAINED / "decima-batch")
    with pytest.raises(InputError, match="does not exist"):
        ENDPOINT.policy(tmp_path / "nowhere")
    with pytest.raises(InputError, match="did you mean 'las-consolidate'"):
        ENDPOINT.rule("las-consolidat")


def test_examples_are_cached_and_decided_deterministically(policy: Policy) -> None:
    examples = ENDPOINT.examples()
    sizes = {name: (len(state.machines), len(state.jobs)) for name, state in examples.items()}
    assert sizes == {"small": (8, 20), "large": (128, 150)}
    assert ENDPOINT.examples() is examples
    for state in examples.values():
        proposal = policy.decide(state)
        assert proposal.decision.start
        assert ENDPOINT.validate_decision(state, proposal.decision) is None
        assert policy.decide(state) == proposal


def test_explanation_lists_best_jobs_and_machines(policy: Policy) -> None:
    episode, jobs, machines = Episode(PRETRAINED / "das-small", seed=7), 0, 0
    for _ in range(60):
        assert episode.runner.advance_to_decision()
        state = episode.record(episode.kind())
        decision, explanation = policy.decide(state)
        episode.act()
        options = explanation.choices["job"]
        assert 1 <= len(options) <= 5
        assert [one.score for one in options] == sorted((o.score for o in options), reverse=True)
        assert all(one.uncertainty is not None and one.uncertainty > 0 for one in options)
        jobs += len(options) > 1
        if state.ask == "reconsidering":
            assert list(explanation.choices) == ["job"]
            continue
        best = explanation.choices["machine"]
        assert decision.start[0].job == options[0].name.removeprefix("job ")
        assert decision.start[0].placements[0].machine == best[0].name
        assert all(one.uncertainty is not None and one.uncertainty > 0 for one in best)
        machines += len(best) > 1
        assert f"job {decision.start[0].job} starts on {best[0].name}" in explanation.summary
    assert jobs > 10
    assert machines > 10


def test_compiled_decisions_and_scores_equal_torch() -> None:
    """A network whose machines have a cell each is decided in torch."""
    compiled = DasPolicy.load(PRETRAINED / "das-small")
    in_cells = compiled.network.settings.model_copy(update={"exact_up_to": 1})
    network = DasNetwork(in_cells)
    network.load_state_dict(compiled.network.state_dict())
    both = compiled, DasPolicy(network, compiled.trained_in)
    episode = Episode(PRETRAINED / "das-small", seed=8).skip(40)
    threads, jobs, machines = torch.get_num_threads(), 0, 0
    for _ in range(60):
        assert episode.runner.advance_to_decision()
        state = episode.record(episode.kind())
        phase = int(episode.runner.decision_state.counts[PHASE])
        (one, reason), (other, other_reason) = (
            policy.decide(tables_of(state, episode.settings, GIVEN), phase) for policy in both
        )
        assert one == other
        assert reason.summary == other_reason.summary
        for kind, options in reason.choices.items():
            pairs = list(zip(options, other_reason.choices[kind], strict=True))
            for left, right in pairs:
                assert left.score == pytest.approx(right.score, rel=1e-4, abs=1e-4)
                assert left.uncertainty == pytest.approx(right.uncertainty, rel=1e-4, abs=2e-6)
            # Rounding may decide between equal ones.
            if len({round(option.score, 2) for option in options}) == len(options):
                assert all(left.name == right.name for left, right in pairs)
        jobs += len(reason.choices["job"]) > 1
        machines += len(reason.choices.get("machine", ())) > 1
        episode.act()
    assert jobs > 20
    assert machines > 10
    assert torch.get_num_threads() == threads


def test_event_explains_first_phase_with_a_choice(policy: Policy) -> None:
    """Job 1 fits on one machine only; then running jobs are reconsidered."""
    runs = job("0", 1, 90_000, {"a": 1}, running_s=80_000)
    event, placing = (
        policy.decide(
            state_with(runs, job("1", 1, 5), job("2", 2, 4), ask=ask, gpus=2)
        ).explanation.choices
        for ask in ("event", "placing")
    )
    assert [one.name for one in placing["job"]] == ["job 1"]
    assert [one.name for one in placing["machine"]] == ["a"]
    assert {one.name for one in event["job"]} == {"job 0", "job 1", "job 2"}
    assert list(event) == ["job"]


@pytest.mark.parametrize("exact_up_to", [256, 1], ids=["compiled", "torch"])
def test_nan_weights_raise(exact_up_to: int) -> None:
    network = DasNetwork(DasSettings(width=16, heads=2, exact_up_to=exact_up_to))
    with torch.no_grad():
        network.ordering.rank.weight.fill_(torch.nan)
    trained_in = DasPolicy.load(PRETRAINED / "das-small").trained_in
    policy = BundlePolicy(DasPolicy(network, trained_in, name="broken"))
    with pytest.raises(FloatingPointError, match="'broken'"):
        policy.decide(ENDPOINT.examples()["small"])


@pytest.mark.parametrize(
    "state",
    [state_with(), state_with(job("1", on={"a": 1})), state_with(job("1"), ask="reconsidering")],
)
def test_phase_without_anything_to_decide_changes_nothing(policy: Policy, state: DasState) -> None:
    decision, explanation = policy.decide(state)
    assert (decision.start, decision.stop) == ((), ())
    assert explanation.choices == {}
    assert explanation.summary.startswith("nothing starts or stops; ")


def test_summary_names_the_job_that_another_is_stopped_for() -> None:
    """LAS: job 2 has attained its share of service, job 3 has not."""
    state = state_with(job("2", 1, 90_000, {"a": 1}, running_s=50_000), job("3", 1, 10))
    decision, explanation = ENDPOINT.rule("las-consolidate").decide(state)
    assert decision.stop == ("2",)
    assert "job 2 stops for job 3" in explanation.summary
    placing = state.model_copy(update={"ask": "placing"})
    assert ENDPOINT.rule("las-consolidate").decide(placing).decision.stop == ()
