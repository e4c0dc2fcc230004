"""AWARE's policy in the service decides as in the episode, with memory carried over."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from loadmaster.envs.pod_scaling.episode import build_setup
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.envs.pod_scaling.state import S_OOMS
from loadmaster.envs.settings import build_settings
from loadmaster.models.aware.choice import Remembered, nothing_known
from loadmaster.models.aware.policy import AwarePolicy
from loadmaster.models.aware.rule import carry_out
from loadmaster.models.bundle import load_bundle
from loadmaster.models.manifest import pretrained_folder
from loadmaster.serving.systems.aware.examples import state_of
from loadmaster.serving.systems.aware.schema import AwareState, to_decision
from loadmaster.serving.systems.aware.system import ENDPOINT
from tests.bundles import make_bundle
from tests.envs.pod_scaling.episodes import last_step
from tests.models.aware.parts import SMALL

STATES = 50


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "mine", system="aware", **SMALL)


@pytest.mark.parametrize(
    ("values", "oom"),
    [
        ({"application": "train"}, False),
        ({"application": "train", "workload": "bursty-like", "load": "low"}, False),
        ({"application": "imageCompress+compress", "initial_memory_mib": 256.0}, True),
    ],
)
def test_decisions_and_memory_equal_those_of_the_episode(
    bundle: Path, values: dict[str, Any], oom: bool
) -> None:
    settings = PodScalingSettings(steps=STATES, **values)
    policy, served = AwarePolicy.from_bundle(load_bundle(bundle)), ENDPOINT.policy(bundle)
    found = compare(policy, served, settings, 3, nothing_known(policy.settings.context))
    assert found.states == STATES
    assert 3 < found.changes < STATES - 3
    assert (found.killed, found.noted) == (oom, 1), "only the first decision is of a new one"


@pytest.mark.slow
def test_parity_of_the_shipped_policy_on_a_thousand_states() -> None:
    """Applications that training did not see, three loads, some new and some with an embedding."""
    folder = pretrained_folder() / "aware"
    policy, served = AwarePolicy.from_bundle(load_bundle(folder)), ENDPOINT.policy(folder)
    rng, loads = np.random.default_rng(1), [{}, {"load": "low"}, {"workload": "bursty-like"}]
    states = changes = 0
    for number in range(20):
        values = {"application": f"test:{number}", **loads[number % len(loads)]}
        known = nothing_known(policy.settings.context)
        if number % 4:
            known.embedding[:] = rng.normal(size=len(known.embedding))
        settings = build_settings(PodScalingSettings, {"steps": STATES, **values})
        found = compare(policy, served, settings, number, known)
        states, changes = states + found.states, changes + found.changes
    assert states == 1000
    assert 100 < changes < 900


class Compared(NamedTuple):
    states: int
    changes: int  # decisions that act
    killed: bool  # a container, for its memory
    noted: int  # decisions with notes


def compare(
    policy: AwarePolicy, served: Any, settings: PodScalingSettings, seed: int, known: Remembered
) -> Compared:
    """Run an episode of the policy, and let the endpoint decide about each of its states too."""
    setup = build_setup(settings)
    runner = EpisodeRunner(settings, setup, seed)
    new, memory = not known.embedding.any(), None if not known.embedding.any() else known.packed()
    state, states, changes, killed, noted = runner.episode.state, 0, 0, False, 0
    for _, decision in policy.steps(runner, known):
        sent = AwareState.model_validate_json(state_of(runner).model_dump_json())
        found = served.decide(sent, memory, None if new else known.embedding)
        memory = found.memory
        assert ENDPOINT.validate_decision(sent, found.decision) is None
        assert found.decision == to_decision(sent, decision.plan)
        np.testing.assert_allclose(memory, known.packed(), rtol=1e-6, atol=1e-6)
        is_new = any("is new" in note for note in found.explanation.notes)
        assert is_new == (new and states == 0)
        noted += bool(found.explanation.notes)
        killed |= bool(last_step(state)[S_OOMS] > 0)
        states, changes = states + 1, changes + found.decision.act
        carry_out(setup.constants, state, decision.plan)
    return Compared(states, changes, killed, noted)


def test_kills_without_a_column_of_steps_are_those_of_the_newest_reports() -> None:
    example = ENDPOINT.examples()["tiny"].model_dump()
    example["reports"]["ooms"] = [1, 0, None, 2, 1]
    given = AwareState.model_validate(example).parsed.snapshot.ooms
    np.testing.assert_array_equal(given, [1, 3])
    example["steps"]["ooms"] = [0, 5]
    np.testing.assert_array_equal(AwareState.model_validate(example).parsed.snapshot.ooms, [0, 5])
    example["steps"]["ooms"] = [1, 2, 3]
    with pytest.raises(ValueError, match="as many as requests"):
        AwareState.model_validate(example).check()
