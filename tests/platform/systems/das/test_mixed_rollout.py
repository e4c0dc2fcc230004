"""DAS over a mixture of settings, and as corrections of a rule."""

from typing import Any

import numpy as np
import pytest
import torch

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.episode import run_episode
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.models.das.module import DasModule
from loadmaster.models.layers import one_thread
from loadmaster.platform.rl.rollout import RolloutSpec
from loadmaster.platform.systems.das.mixed_rollout import MixedEngine, mixed_cost
from loadmaster.platform.systems.das.rollout import DasEngine
from loadmaster.platform.systems.das.training import RECIPE, baselines, check
from loadmaster.platform.training.mixture import mixed_settings
from tests.models.das.builders import NETWORK, module_of
from tests.platform.rl.test_rollout import assert_same
from tests.platform.systems.das.test_training import tiny
from tests.platform.systems.decima.test_training import Start, row_of

pytestmark = pytest.mark.slow

GUIDE = "predicted-speed-price"
BASE = GpuSchedulingSettings(jobs=40, guide=GUIDE, history=4)
CHANGES: list[dict[str, Any]] = [{"load": 1.5}, {"cluster": "medium", "load": 0.8}]
GUIDED = {"opening": "rule", "communicate": False, "process": False}


def guided_module(std: float = 0.0) -> DasModule:
    module = module_of(0.0, **NETWORK, **GUIDED)
    torch.nn.init.normal_(module.network.ordering.straight.weight, std=std)
    return module


def test_untrained_costs_are_those_of_the_rule() -> None:
    engine = MixedEngine(mixed_settings(BASE, CHANGES))
    scores = engine.judge(guided_module(), [10, 11, 12])
    assert [score.value for score in scores] == [100.0, 100.0, 100.0]
    assert [score.loss for score in scores] == [100.0, 100.0, 100.0]
    assert engine.baseline_cost(GUIDE, 11) == 100.0
    assert engine.baseline_cost("fifo-first-fit", 11) > 100.0


def test_costs_are_relative_by_sequence_and_setting() -> None:
    members, module = mixed_settings(BASE, CHANGES), guided_module(0.3)
    (score,) = MixedEngine(members).judge(module, [11])
    settings = members[1]
    workload = load_workload(settings)
    (alone,) = DasEngine(settings).judge(module, [11])
    rule = run_episode(GUIDE, settings, 11, workload)
    assert score.decisions == alone.decisions
    without_fee = settings.model_copy(update={"fee_weight": 0.0})
    (score,) = MixedEngine([without_fee]).judge(module, [11])
    assert score.value == pytest.approx(100 * alone.value / rule.mean_jct_s)
    assert mixed_cost(settings, rule) ** 2 == pytest.approx(rule.mean_jct_s * rule.fee.mean())


def test_guided_recordings_equal_vector_engine() -> None:
    engine, module = DasEngine(BASE.model_copy(update={"max_queue": 24})), guided_module(0.3)
    work = [RolloutSpec(3, 11, keep=0.6), RolloutSpec(8, 13)]
    with one_thread():
        found, expected = (each.roll_out(module, work) for each in (engine.loop, engine.vector))
    for one, other in zip(found, expected, strict=True):
        assert one.decisions == other.decisions
        assert_same(one.observations, other.observations, atol=2e-5)
        assert_same(one.actions, other.actions, atol=2e-5)
        np.testing.assert_allclose(one.log_probability, other.log_probability, rtol=1e-5, atol=2e-4)
        np.testing.assert_allclose(one.rollout.reward, other.rollout.reward)
        assert one.figures == pytest.approx(other.figures)


def test_evolution_over_a_mixture(start: Start) -> None:
    search = {"weights": ["*straight*", "tilt_*"], "population": 4, "spread": 0.1}
    config = tiny(
        method="evolution",
        evolution=search,
        environment={"guide": GUIDE, "history": 4},
        network=GUIDED,
    ).model_copy(update={"mixture": tuple(CHANGES)})
    check(config)
    assert RECIPE.metric(config).name == "relative_cost"
    assert baselines(config, [4, 5])[GUIDE] == 100.0
    trainer = start(RECIPE, config)
    before, row, after = trainer.weights(), row_of(trainer), trainer.weights()
    assert all(np.isfinite(value) for value in row.values())
    changed = {name for name in before if (before[name] != after[name]).any()}
    assert changed == {name for name in before if "straight" in name or "tilt" in name}
    assert "tilt_rule" in changed


def test_mappo_learns_corrections(start: Start) -> None:
    """The parameters of the rule have no gradient."""
    config = tiny(environment={"guide": GUIDE}, network=GUIDED, critic={"kind": "v"})
    check(config)
    trainer = start(RECIPE, config)
    before, row, after = trainer.weights(), row_of(trainer), trainer.weights()
    assert min(row["jct_s"], row["fee"], row["kl"]) > 0
    changed = {name.split(".")[0] for name in before if (before[name] != after[name]).any()}
    assert changed == {"ordering", "placement"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"environment": {"guide": GUIDE}}, "network.opening.*'rule'"),
        ({"network": {"opening": "rule"}}, "environment.guide"),
        ({"environment": {"guide": GUIDE}, "network": {**GUIDED}, "mixture": CHANGES}, "evolution"),
        ({"environment": {"guide": GUIDE}, "network": {**GUIDED}, "mixture": [{"lod": 1}]}, "lod"),
    ],
)
def test_settings_that_cannot_be_trained_are_rejected(
    changes: dict[str, Any], expected: str
) -> None:
    mixture = tuple(changes.pop("mixture", ()))
    with pytest.raises(InputError, match=expected):
        check(tiny(**changes).model_copy(update={"mixture": mixture}))


def test_a_guide_refuses_the_published_reward() -> None:
    with pytest.raises(ValueError, match="guide"):
        GpuSchedulingSettings(guide=GUIDE, reward="published")
