"""AWARE's training: the meta-learner's update, best trajectories, iterations and exact resume."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.models.aware.features import FEATURES
from loadmaster.models.aware.module import AwareModule
from loadmaster.models.aware.network import STEP_WIDTH
from loadmaster.models.aware.settings import MARGINS
from loadmaster.models.ddpg.settings import CONTEXT, CONTEXT_ID
from loadmaster.platform.rl.ddpg import actor_loss, critic_loss
from loadmaster.platform.systems.aware.algorithm import (
    AwareLearning,
    MetaConfig,
    MetaLearner,
    MetaOffPolicy,
)
from loadmaster.platform.systems.aware.rollout import ACTIONS, OBSERVATIONS
from loadmaster.platform.systems.aware.training import RECIPE, AwareTraining
from loadmaster.platform.training.trainer import Trainer
from tests.models.aware.parts import SMALL

APPLICATIONS, ROWS = 5, 40
CLOCKS = ("seconds", "decisions_per_s", "workers")


def learner_of(**network: Any) -> MetaLearner:
    config = MetaConfig(algo_class=MetaOffPolicy).rollout_engine(learning=AwareLearning())
    config.environment(observation_space=OBSERVATIONS, action_space=ACTIONS)
    sizes = {"network": {**SMALL, **network}, "contexts": APPLICATIONS}
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=AwareModule, model_config=sizes))
    torch.manual_seed(3)
    built: MetaLearner = config.build_learner(spaces={DEFAULT_MODULE_ID: (OBSERVATIONS, ACTIONS)})
    module = module_of(built)
    for table in (*module.network.actor.parameters(), *module.network.critic.parameters()):
        torch.nn.init.normal_(table, std=0.3)  # last layers start near 0; here all matter
    torch.nn.init.constant_(module.network.encoder.out.bias, 0.5)
    module.make_target_networks()
    return built


def module_of(learner: MetaLearner) -> Any:
    return learner.module[DEFAULT_MODULE_ID].unwrapped()


def batch_of(rng: np.random.Generator) -> dict[str, Any]:
    return {
        Columns.OBS: rng.standard_normal((ROWS, FEATURES)).astype(np.float32),
        Columns.ACTIONS: rng.uniform(-1, 1, (ROWS, len(MARGINS))).astype(np.float32),
        Columns.REWARDS: rng.standard_normal(ROWS).astype(np.float32),
        Columns.NEXT_OBS: rng.standard_normal((ROWS, FEATURES)).astype(np.float32),
        Columns.TERMINATEDS: np.zeros(ROWS, np.float32),
        CONTEXT_ID: rng.integers(APPLICATIONS, size=ROWS),
    }


def trajectories_of(rng: np.random.Generator) -> list[list[Any]]:
    return [
        [rng.standard_normal((4 + place, STEP_WIDTH)).astype(np.float32) for _ in range(2)]
        for place in range(APPLICATIONS)
    ]


def test_meta_update_changes_the_encoder_alone() -> None:
    learner, rng = learner_of(), np.random.default_rng(1)
    module = module_of(learner)
    trajectories, batch = trajectories_of(rng), batch_of(rng)
    before = copy.deepcopy(module.state_dict())
    first = learner.meta_update(trajectories, dict(batch))
    encoder = "network.encoder."
    for name, table in module.state_dict().items():
        assert torch.equal(table, before[name]) != name.startswith(encoder), name
    for _ in range(30):
        last = learner.meta_update(trajectories, dict(batch))
    assert last < first
    assert all(weight.grad is None for weight in module.network.actor.parameters())


def test_meta_update_has_the_gradient_of_both_losses() -> None:
    """As autograd through encoder and losses at once; its norm is bounded by 1."""
    learner, rng = learner_of(), np.random.default_rng(1)
    module = module_of(learner)
    trajectories, batch = trajectories_of(rng), batch_of(rng)
    columns = {name: torch.from_numpy(column) for name, column in batch.items()}
    embedded = module.network.encoder.embed(
        [[torch.from_numpy(each) for each in own] for own in trajectories]
    )
    columns[CONTEXT] = embedded[columns.pop(CONTEXT_ID)]
    learning = learner.config.learning
    loss = critic_loss(module, columns, learning.gamma)
    loss = loss + actor_loss(module, columns, learning.action_cost)
    weights = list(module.network.encoder.parameters())
    expected = torch.autograd.grad(loss, weights)
    norm = torch.stack([each.norm() for each in expected]).norm()
    optimizer, seen = learner.get_optimizer(DEFAULT_MODULE_ID, "encoder"), []
    optimizer.register_step_pre_hook(
        lambda *_: seen.extend(weight.grad.clone() for weight in weights)
    )
    assert learner.meta_update(trajectories, batch) == pytest.approx(loss.item(), rel=1e-5)
    for found, own in zip(seen, expected, strict=True):
        torch.testing.assert_close(found, own / max(float(norm), 1.0), rtol=1e-3, atol=1e-5)
    assert optimizer.param_groups[0]["lr"] == learning.meta_learning_rate


def test_actor_loss_reaches_contexts_through_the_actions_alone() -> None:
    module, batch = module_of(learner_of()), batch_of(np.random.default_rng(2))
    columns = {name: torch.from_numpy(column) for name, column in batch.items()}
    context = torch.randn(ROWS, SMALL["embedding"])[columns.pop(CONTEXT_ID)].requires_grad_()  # type: ignore[call-overload]
    columns[CONTEXT] = context
    (gradient,) = torch.autograd.grad(actor_loss(module, columns), context)
    assert (gradient.abs().sum(1) > 0).float().mean() > 0.5
    with torch.no_grad():  # an actor that ignores its context
        module.network.actor.weights[0][:, FEATURES:] = 0
    (gradient,) = torch.autograd.grad(actor_loss(module, columns), context)
    assert not gradient.any()
    (gradient,) = torch.autograd.grad(critic_loss(module, columns, 0.9), context)
    assert (gradient.abs().sum(1) > 0).float().mean() > 0.5


def small(**training: Any) -> AwareTraining:
    values = {
        "seed": 5,
        "environment": {"steps": 10},
        "network": {**SMALL, "critics": 2},
        "rollouts": {"workers": 0, "episodes": 6},
        "training": {
            "minibatch": 16, "updates_per_step": 0.2, "actor_start": 2, "table_every": 1,
            "meta_applications": 4, "meta_trajectories": 2, **training,
        },
        "validation": {"every": 1, "sequences": 3},
    }  # fmt: skip
    return build_settings(AwareTraining, values)


def row(trainer: Trainer) -> dict[str, float]:
    """Metrics of one more iteration, without clocks."""
    return {name: value for name, value in trainer.step().items() if not name.endswith(CLOCKS)}


@pytest.mark.slow
def test_iterations_change_all_networks_and_are_resumed_exactly(
    start: Callable[..., Trainer], here: Path
) -> None:
    folder = here / "run"
    one = start(RECIPE, small(), run_folder=folder)
    before = one.weights()
    rows = [row(one)]
    one.save(here / "checkpoint")
    saved: Any = one.algorithm
    best = copy.deepcopy(saved.best)
    contexts = one.algorithm.module_weights()["contexts"]
    rows += [row(one), row(one)]
    after = one.weights()
    assert all(math.isfinite(value) for each in rows for value in each.values())
    assert len({each["meta_loss"] for each in rows}) == 3
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    for part in ("actor", "critic", "encoder"):
        assert any(name.startswith(part) for name in changed), part
    assert 1 <= len(best) <= 6
    assert all(
        contexts[application].any() or application not in best
        for application in range(len(contexts))
    )
    assert np.count_nonzero(contexts.any(axis=1)) <= len(best)
    resumed = start(RECIPE, small(), resumed=True, run_folder=folder)
    resumed.restore(here / "checkpoint")
    assert resumed.algorithm.best == best  # type: ignore[attr-defined]
    assert [row(resumed) for _ in range(2)] == rows[1:]
    for name, table in after.items():
        assert torch.equal(resumed.weights()[name], table), name


@pytest.mark.slow
def test_trajectories_that_the_replay_has_replaced_are_dropped(
    start: Callable[..., Trainer],
) -> None:
    config = small(replay=150)  # 66 rows an iteration
    trainer = start(RECIPE, config)
    algorithm: Any = trainer.algorithm
    for _ in range(4):
        row(trainer)
        oldest = algorithm.replay.rows - 150
        firsts = [first for own in algorithm.best.values() for _, first, _ in own]
        assert min(firsts) >= oldest
        for application, own in algorithm.best.items():
            assert own == sorted(own, reverse=True)
            assert len(own) <= config.network.encoder.trajectories
            for value, first, steps in own:
                rows = algorithm.replay.rows_at(np.arange(first, first + steps))
                assert rows[:, -1].sum() == pytest.approx(value, rel=1e-4, abs=1e-4), application


@pytest.mark.slow
def test_without_an_encoder_there_are_no_contexts(start: Callable[..., Trainer]) -> None:
    values = small().model_dump()
    values["network"]["encoder"]["kind"] = "none"
    trainer = start(RECIPE, build_settings(AwareTraining, values))
    assert "meta_loss" not in row(trainer)
    assert not any(name.startswith("encoder") for name in trainer.weights())


def test_baselines_have_the_rule_and_the_same_loads() -> None:
    found = RECIPE.baselines(small(), [4, 5, 6])
    assert "aware-rule" in found
    assert "random" not in found
    assert all(math.isfinite(value) for value in found.values())


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"loads": []}, "loads is empty"),
        ({"loads": [["diurnal", "high"]]}, "diurnal-like"),
        ({"training": {"gamma": 1.5}}, "gamma"),
        ({"training": {"noise": -1}}, "noise"),
    ],
)
def test_bad_settings_are_one_line(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected) as fault:
        RECIPE.check(build_settings(AwareTraining, values))
    assert "\n" not in str(fault.value)
