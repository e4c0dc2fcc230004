"""MAPPO: two agents learn to open vaults together from a centralised critic."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from loadmaster.platform.rl.mappo import CRITIC
from loadmaster.platform.rl.rollout import RolloutSpec
from loadmaster.platform.rl.vector_rollout import VectorEngine
from loadmaster.platform.training.config import Critic, Learning, Recipe, Schedule, TrainingConfig
from loadmaster.platform.training.trainer import Trainer, quiet_rllib
from tests.learning.vaults import AGENTS, SEEDS, STEPS, Vaults, vaults_config, vaults_opened

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]

ITERATIONS = 30
CLOCKS = ("seconds", "decisions_per_s", "workers")
Kind = Literal["none", "v", "q"]


def learning(kind: Kind, **critic: Any) -> Learning:
    return Learning(
        learning_rate=Schedule(first=0.05, last=0.05),
        entropy=Schedule(first=0, last=0),
        epochs=4,
        minibatches=2,
        stop_at_kl=1.0,
        gradient_clip=10,
        critic=Critic(
            kind=kind, gamma=0.95, gae_lambda=0.5, learning_rate=3e-3, epochs=10, **critic
        ),
    )


@contextmanager
def built(how: Learning, **settings: Any) -> Iterator[Any]:
    with quiet_rllib():
        algorithm = vaults_config(how, **settings).build_algo()
        try:
            yield algorithm
        finally:
            algorithm.stop()


def opened_after(iterations: int, how: Learning, agents: Sequence[str] = AGENTS) -> float:
    with built(how, agents=agents) as algorithm:
        for _ in range(iterations):
            algorithm.train()
        return vaults_opened(algorithm.episode_values(SEEDS))


@pytest.mark.parametrize(("kind", "iterations"), [("v", ITERATIONS), ("q", 2 * ITERATIONS)])
def test_both_kinds_of_critic_reach_the_optimum(kind: Kind, iterations: int) -> None:
    assert opened_after(iterations, learning(kind)) > 0.99


def test_critic_of_one_agent_needs_shared_input() -> None:
    """To a critic that observes one agent the toll is noise."""
    one = AGENTS[:1]
    assert opened_after(ITERATIONS, learning("v"), agents=one) < 0.7
    assert opened_after(ITERATIONS // 2, learning("v", shared_input=True), agents=one) > 0.99


def test_agents_learn_without_a_critic_from_shared_input() -> None:
    assert opened_after(ITERATIONS // 2, learning("none")) > 0.99


def test_critic_is_fitted_at_the_learner_and_leaves_the_policy_unchanged() -> None:
    """Adam moves by its momentum even where the gradient is 0."""
    still = learning("v").model_copy(update={"learning_rate": Schedule(first=0, last=0)})
    with built(still) as algorithm:
        result = algorithm.train()
        assert result["learners"][CRITIC]["loss"] > 0
        assert result["rollouts"]["critic_explains"] < 0.5
        policy, critic = algorithm.module_weights(), algorithm.learner_group.get_weights()[CRITIC]
        assert not any("worth" in name for name in policy)
        algorithm.train()
        after = algorithm.learner_group.get_weights()[CRITIC]
        assert any((critic[name] != after[name]).any() for name in critic)
        after = algorithm.module_weights()
        assert all((policy[name] == after[name]).all() for name in policy)


class Truncated(Vaults):
    """Games that are truncated instead of terminated."""

    def step(self, actions: Any) -> tuple[Any, ...]:
        seen, rewards, terminated, truncated, infos = super().step(actions)
        return seen, rewards, truncated, terminated, infos


@pytest.mark.parametrize("kind", ["v", "q"])
def test_truncated_games_are_bootstrapped_by_the_critic(kind: Kind) -> None:
    with built(learning(kind, samples=2)) as algorithm:
        results = [algorithm.train() for _ in range(2)]
        assert results[1]["learners"]["default_policy"]["kl"] > 0
        work = [RolloutSpec(seed, action_seed=seed, keep=0.5) for seed in range(4)]
        weights, runner = algorithm.module_weights(), algorithm.env_runner_group.local_env_runner
        values = [algorithm.critic_values(runner.sample(weights, work))[1]]
        runner.engine = VectorEngine(lambda count, _: Truncated(count))
        short = runner.sample(weights, work)
        values.append(algorithm.critic_values(short)[1])
        for terminated, truncated in zip(*values, strict=True):
            assert truncated[:-1] == pytest.approx(terminated[:-1])
            assert terminated[-1] == 0
            assert truncated[-1] != 0
        advantages = algorithm.advantages([short])
        assert len(advantages) == sum(len(own.kept) for own in short) < 4 * STEPS
        assert float(advantages.std()) == pytest.approx(1, abs=1e-3)


RECIPE = Recipe(
    system="vaults",
    config_class=TrainingConfig,
    metric=lambda config: "cost",
    algorithm=lambda config: vaults_config(config.training, config.rollouts.workers),
    baselines=lambda config, seeds: {},
    network=lambda config: {},
    check=lambda config: None,
    compile=lambda config: None,
)


def row_of(trainer: Trainer) -> dict[str, float]:
    """Metrics of one more iteration, without clocks."""
    return {name: value for name, value in trainer.step().items() if not name.endswith(CLOCKS)}


def test_q_rows_are_reproducible_when_resumed(tmp_path: Path) -> None:
    """tests/platform/systems/das/test_training.py covers V, and workers."""
    default = TrainingConfig()
    changes = {
        "training": learning("q", samples=3),
        "rollouts": default.rollouts.model_copy(update={"workers": 0}),
        "validation": default.validation.model_copy(update={"every": 1, "sequences": 8}),
    }
    config = default.model_copy(update=changes)
    trainer, resumed = Trainer(RECIPE, config), Trainer(RECIPE, config, resumed=True)
    try:
        rows = [row_of(trainer)]
        trainer.save(tmp_path / "saved")
        rows.append(row_of(trainer))
        resumed.restore(tmp_path / "saved")
        assert row_of(resumed) == pytest.approx(rows[1], rel=1e-4)
        assert rows[0]["critic_explains"] != rows[1]["critic_explains"]
    finally:
        trainer.stop()
        resumed.stop()
