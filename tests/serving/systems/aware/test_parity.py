"""AWARE's policy in the service decides as in the episode, with memory carried over."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.pod_scaling.episode import build_setup
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.envs.pod_scaling.state import S_OOMS
from loadmaster.models.aware.choice import nothing_known
from loadmaster.models.aware.policy import AwarePolicy
from loadmaster.models.aware.rule import carry_out
from loadmaster.models.bundle import load_bundle
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
    setup = build_setup(settings)
    policy, served = AwarePolicy.from_bundle(load_bundle(bundle)), ENDPOINT.policy(bundle)
    runner, known = EpisodeRunner(settings, setup, 3), nothing_known(policy.settings.context)
    state, memory, states, changes, killed = runner.episode.state, None, 0, 0, False
    for _, decision in policy.steps(runner, known):
        sent = AwareState.model_validate_json(state_of(runner).model_dump_json())
        found = served.decide(sent, memory)  # type: ignore[call-arg]
        memory = found.memory
        assert ENDPOINT.validate_decision(sent, found.decision) is None
        assert found.decision == to_decision(sent, decision.plan)
        np.testing.assert_allclose(memory, known.packed(), rtol=1e-6, atol=1e-6)
        assert bool(found.explanation.notes) == (states == 0)
        killed |= last_step(state)[S_OOMS] > 0
        states, changes = states + 1, changes + found.decision.act
        carry_out(setup.constants, state, decision.plan)
    assert states == STATES
    assert 3 < changes < STATES - 3
    assert killed == oom


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
