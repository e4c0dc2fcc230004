"""Two agents learn to open vaults together, from a critic that sees what both see."""

from __future__ import annotations

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

pytestmark = pytest.mark.usefixtures("ray_session")

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
        return vaults_opened(algorithm.judge(SEEDS))


@pytest.mark.parametrize("kind", ["v", "q"])
def test_both_kinds_of_critic_teach_the_best_there_is(kind: Kind) -> None:
    assert opened_after(ITERATIONS, learning(kind)) > 0.99


def test_a_critic_that_sees_one_agents_part_teaches_much_less() -> None:
    """As learners do that know of nobody else: to them the toll is noise."""
    assert opened_after(ITERATIONS, learning("v"), agents=AGENTS[:1]) < 0.7


def test_without_a_critic_the_shared_input_teaches_agents_too() -> None:
    assert opened_after(ITERATIONS // 2, learning("none")) > 0.99


def test_a_critic_that_sees_half_may_compare_rollouts_of_one_sequence() -> None:
    how = learning("v", shared_input=True)
    assert opened_after(ITERATIONS // 2, how, agents=AGENTS[:1]) > 0.99


def test_the_critic_stays_with_the_learner() -> None:
    with built(learning("v")) as algorithm:
        assert not any("worth" in name for name in algorithm.module_weights())
        before = algorithm.learner_group.get_weights()[CRITIC]
        result = algorithm.train()
        after = algorithm.learner_group.get_weights()[CRITIC]
        assert any((before[name] != after[name]).any() for name in before)
        assert result["learners"][CRITIC]["loss"] > 0
        assert result["rollouts"]["critic_explains"] < 0.5  # it had learnt nothing yet
        assert result["learners"]["default_policy"]["kl"] > 0


class CutOff(Vaults):
    """Games that are cut off, though they could go on."""

    def step(self, actions: Any) -> tuple[Any, ...]:
        seen, rewards, over, cut_off, infos = super().step(actions)
        return seen, rewards, cut_off, over, infos


@pytest.mark.parametrize("kind", ["v", "q"])
def test_what_follows_a_game_that_was_cut_off_is_the_critics_to_say(kind: Kind) -> None:
    with built(learning(kind, samples=2)) as algorithm:
        for _ in range(2):
            algorithm.train()
        work = [RolloutSpec(seed, luck=seed, keep=0.5) for seed in range(4)]
        weights, runner = algorithm.module_weights(), algorithm.env_runner_group.local_env_runner
        whole = runner.sample(weights, work)
        runner._engine = VectorEngine(lambda count, _: CutOff(count))
        short = runner.sample(weights, work)
        for over, cut_off in zip(
            algorithm._judged(whole)[1], algorithm._judged(short)[1], strict=True
        ):
            assert cut_off[:-1] == pytest.approx(over[:-1])
            assert over[-1] == 0
            assert cut_off[-1] != 0
        advantages = algorithm._advantages([short])
        assert len(advantages) == sum(len(own.kept) for own in short) < 4 * STEPS
        assert float(advantages.std()) == pytest.approx(1, abs=1e-3)


def test_what_the_critic_is_fitted_to_leaves_the_policy_alone() -> None:
    """Adam goes on by its momentum wherever it is given a gradient, though it were 0."""
    still = learning("v").model_copy(update={"learning_rate": Schedule(first=0, last=0)})
    with built(still) as algorithm:
        algorithm.train()
        before = algorithm.module_weights()
        algorithm.train()
        after = algorithm.module_weights()
        assert all((before[name] == after[name]).all() for name in before)


def algorithm_of(config: TrainingConfig) -> Any:
    return vaults_config(config.training, config.rollouts.workers)


def nothing(config: TrainingConfig) -> None:
    pass


RECIPE = Recipe(
    system="vaults",
    config_class=TrainingConfig,
    metric=lambda config: "cost",
    algorithm=algorithm_of,
    baselines=lambda config, seeds: {},
    network=lambda config: {},
    check=nothing,
    compile=nothing,
)


def config_of(kind: Kind, workers: int = 0) -> TrainingConfig:
    default = TrainingConfig()
    return default.model_copy(
        update={
            "training": learning(kind, samples=3),
            "rollouts": default.rollouts.model_copy(update={"workers": workers}),
            "validation": default.validation.model_copy(update={"every": 1, "sequences": 8}),
        }
    )


def row_of(trainer: Trainer) -> dict[str, float]:
    """One more iteration, without what no two runs have in common."""
    return {name: value for name, value in trainer.step().items() if not name.endswith(CLOCKS)}


@pytest.mark.parametrize("kind", ["v", "q"])
def test_a_seed_gives_the_same_rows_also_when_resumed_and_with_workers(
    kind: Kind, tmp_path: Path
) -> None:
    trainer = Trainer(RECIPE, config_of(kind))
    resumed = Trainer(RECIPE, config_of(kind, workers=2 if kind == "v" else 0), resumed=True)
    try:
        rows = [row_of(trainer) for _ in range(2)]
        trainer.save(tmp_path / "saved")
        rows += [row_of(trainer) for _ in range(2)]
        resumed.restore(tmp_path / "saved")
        for before in rows[2:]:
            assert row_of(resumed) == pytest.approx(before, rel=1e-4)
        assert rows[0]["critic_explains"] != rows[1]["critic_explains"]
    finally:
        trainer.stop()
        resumed.stop()
    again = Trainer(RECIPE, config_of(kind))
    try:
        assert [row_of(again) for _ in range(2)] == rows[:2]
    finally:
        again.stop()
