"""The bundle behind the endpoint: what it tells of itself, and of its decisions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling import decision_state as on
from loadmaster.envs.gpu_scheduling.rule_ids import GIVEN
from loadmaster.models.bundle import load_bundle
from loadmaster.models.manifest import read_manifest
from loadmaster.serving.system import find_endpoint
from loadmaster.serving.systems.das.agents import Agents, CompiledAgents, TorchAgents, one_thread
from loadmaster.serving.systems.das.decisions import decision_of
from loadmaster.serving.systems.das.policy import DasPolicy, choices_of
from loadmaster.serving.systems.das.schema import DasState
from loadmaster.serving.systems.das.system import ENDPOINT
from loadmaster.serving.systems.das.tables import tables_of
from tests.bundles import make_bundle
from tests.serving.systems.das.episodes import PRETRAINED, Episode


@pytest.fixture(scope="module")
def policy() -> DasPolicy:
    return DasPolicy(PRETRAINED / ENDPOINT.pretrained)


def test_the_registry_knows_it() -> None:
    assert find_endpoint("das") is ENDPOINT
    assert ENDPOINT.rules[0] == "las-consolidate"


def test_it_has_its_bundle_s_name_and_version(policy: DasPolicy) -> None:
    manifest = read_manifest(PRETRAINED / "das-small")
    assert (policy.name, policy.version) == ("das-small", manifest.sha256[:12])


def test_other_bundles_and_rules_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds a policy of 'decima'; expected one of 'das'"):
        ENDPOINT.policy(PRETRAINED / "decima-batch")
    with pytest.raises(InputError, match="does not exist"):
        ENDPOINT.policy(tmp_path / "nowhere")
    with pytest.raises(InputError, match="did you mean 'las-consolidate'"):
        ENDPOINT.rule("las-consolidat")


def test_examples_are_made_once_and_always_the_same(policy: DasPolicy) -> None:
    examples = ENDPOINT.examples()
    assert list(examples) == ["small", "large"]
    assert "huge" not in examples
    small, large = examples["small"], examples["large"]
    assert (len(small.machines), len(small.jobs)) == (8, 20)
    assert (len(large.machines), len(large.jobs)) == (128, 150)
    assert ENDPOINT.examples()["small"] is small
    for state in (small, large):
        proposal = policy.decide(state)
        assert proposal.decision.start
        assert ENDPOINT.validate_decision(state, proposal.decision) is None
        assert policy.decide(state) == proposal


def test_the_reason_tells_the_best_jobs_and_machines(policy: DasPolicy) -> None:
    episode, jobs, machines = Episode(PRETRAINED / "das-small", seed=7), 0, 0
    for _ in range(60):
        assert episode.sitting.advance_to_decision()
        state = episode.record(episode.kind())
        decision, reason = policy.decide(state)
        episode.act()
        told = reason.choices["job"]
        assert 1 <= len(told) <= 5
        assert [one.score for one in told] == sorted((o.score for o in told), reverse=True)
        assert all(one.uncertainty is not None and one.uncertainty > 0 for one in told)
        jobs += len(told) > 1
        if state.ask == "reconsidering":
            assert list(reason.choices) == ["job"]
            continue
        machine = reason.choices["machine"]
        assert decision.start[0].job == told[0].name.removeprefix("job ")
        assert decision.start[0].placements[0].machine == machine[0].name
        assert all(one.uncertainty is not None and one.uncertainty > 0 for one in machine)
        machines += len(machine) > 1
        assert f"job {decision.start[0].job} starts on {machine[0].name}" in reason.summary
    assert jobs > 10
    assert machines > 10


def test_compiled_and_in_torch_they_want_the_same_and_are_equally_sure() -> None:
    network = load_bundle(PRETRAINED / "das-small").build()
    episode = Episode(PRETRAINED / "das-small", seed=8).skip(40)
    sees = episode.settings.max_queue, episode.settings.history
    both: tuple[Agents, ...] = CompiledAgents(network, *sees), TorchAgents(network, *sees)
    jobs = machines = 0
    for _ in range(60):
        assert episode.sitting.advance_to_decision()
        asked, moment = episode.record(episode.kind()), episode.sitting.desk.counts[on.MOMENT]
        decisions, told = [], []
        for agents in both:
            tables = tables_of(asked, episode.settings, GIVEN)
            weighed = agents.answer(tables, int(moment))
            assert weighed is not None
            decisions.append(decision_of(tables))
            told.append(choices_of(tables, weighed))
        assert decisions[0] == decisions[1]
        for kind, choices in told[0].items():
            for one, other in zip(choices, told[1][kind], strict=True):
                assert one.score == pytest.approx(other.score, rel=1e-4, abs=1e-4)
                assert one.uncertainty == pytest.approx(other.uncertainty, rel=1e-4, abs=2e-6)
            # Of equal ones a rounding may decide.
            if len({round(one.score, 2) for one in choices}) == len(choices):
                assert [one.name for one in choices] == [one.name for one in told[1][kind]]
        jobs += len(told[0]["job"]) > 1
        machines += len(told[0].get("machine", ())) > 1
        episode.act()
    assert jobs > 20
    assert machines > 10


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_an_event_is_told_by_its_first_moment_with_a_choice(policy: DasPolicy) -> None:
    """Job 1 fits in one place only; then there is room to be made for the others."""
    machine = {"name": "a", "gpus": 2, "gpu": "T4", "cpus": 8}
    runs = {
        "id": "0",
        "gpus": 1,
        "age_s": 90_000,
        "running_s": 80_000,
        "placements": [{"machine": "a", "instances": 1}],
    }
    jobs = [runs, {"id": "1", "gpus": 1, "age_s": 5}, {"id": "2", "gpus": 2, "age_s": 4}]
    state = {"machines": [machine], "jobs": jobs}
    event = policy.decide(DasState.model_validate(state)).explanation.choices
    placing = policy.decide(
        DasState.model_validate({**state, "ask": "placing"})
    ).explanation.choices
    assert [one.name for one in placing["job"]] == ["job 1"]
    assert [one.name for one in placing["machine"]] == ["a"]
    assert {one.name for one in event["job"]} == {"job 0", "job 1", "job 2"}
    assert list(event) == ["job"]


def test_numbers_that_are_none_are_no_decision(tmp_path: Path) -> None:
    policy = DasPolicy(make_bundle(tmp_path / "lost", system="das", width=16, heads=2))
    rank = policy._in_torch._network.ordering.rank
    with torch.no_grad():
        rank.weight.fill_(torch.nan)
    policy._compiled = CompiledAgents(policy._in_torch._network, 64, 8)
    with pytest.raises(FloatingPointError, match="'lost' gives numbers that are not finite"):
        policy.decide(ENDPOINT.examples()["small"])


def test_a_moment_that_does_not_come_leads_to_nothing(policy: DasPolicy) -> None:
    """Nobody waits, or nobody runs who could make room."""
    machine = {"name": "a", "gpus": 1, "gpu": "T4", "cpus": 4}
    waits = {"id": "1", "gpus": 1, "age_s": 1}
    runs = {**waits, "placements": [{"machine": "a", "instances": 1}]}
    for jobs, ask in (([], "event"), ([runs], "event"), ([waits], "reconsidering")):
        state = DasState.model_validate({"machines": [machine], "jobs": jobs, "ask": ask})
        decision, reason = policy.decide(state)
        assert (decision.start, decision.stop) == ((), ())
        assert reason.choices == {}
        assert reason.summary.startswith("nothing starts or stops; ")


def test_who_stops_makes_room_for_whom() -> None:
    """LAS: job 2 has had its share of service, job 3 has not."""
    machine = {"name": "a", "gpus": 1, "gpu": "T4", "cpus": 4}
    served = {
        "id": "2",
        "gpus": 1,
        "age_s": 90_000,
        "placements": [{"machine": "a", "instances": 1}],
        "running_s": 50_000,
    }
    new = {"id": "3", "gpus": 1, "age_s": 10}
    state = DasState.model_validate({"machines": [machine], "jobs": [served, new]})
    decision, reason = ENDPOINT.rule("las-consolidate").decide(state)
    assert decision.stop == ("2",)
    assert reason.summary == "job 3 starts on a; job 2 stops, making room for job 3; 1 job waits"
    placing = state.model_copy(update={"ask": "placing"})
    assert ENDPOINT.rule("las-consolidate").decide(placing).decision.stop == ()
