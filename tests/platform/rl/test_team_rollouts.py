"""Rollouts of several agents: whose numbers are drawn, what is shown, and what is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns

from loadmaster.models.keyed_random import RNG_KEY, standard_normal
from loadmaster.platform.rl.parallel_teams import ParallelTeams
from loadmaster.platform.rl.rollout import Ragged, Recording, RolloutSpec
from loadmaster.platform.rl.rollout_buffer import Rows
from loadmaster.platform.rl.vector_rollout import VectorEngine
from tests.learning.vaults import AGENTS, STEPS, Vaults, keyholders, make_engine

QUEUE, MACHINES = 6, 2


class Queues:
    """Job i of an episode's queue is the number i + 1; every step takes the first away.

    The seed is the queue's length, so episodes differ in theirs. Those of odd seeds are cut off
    with a job left. Observations are written over, as environments may do.
    """

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.view = {
            "jobs": np.zeros((num_envs, QUEUE, 1), np.float32),
            "mask": np.zeros((num_envs, QUEUE), np.bool_),
            "machines": np.ones((num_envs, MACHINES), np.float32),
        }

    def reset(self, *, seed: Sequence[int]) -> tuple[Any, dict[str, Any]]:
        self.seeds = np.array(seed)
        self.left = self.seeds.copy()
        self.given: list[dict[str, Any]] = []
        return self._observe(), {"time_s": np.zeros(self.num_envs)}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        assert actions["order"].shape == (self.num_envs, QUEUE)
        assert actions["place"].shape == (self.num_envs, QUEUE, MACHINES)
        assert actions["pace"].shape == (self.num_envs,)
        self.given.append(actions)
        self.left = np.maximum(self.left - 1, 0)
        odd = self.seeds % 2 == 1
        passed = 10.0 * (self.seeds - self.left)
        over, cut_off = ~odd & (self.left == 0), odd & (self.left <= 1)
        return self._observe(), -passed, over, cut_off, {"time_s": passed}

    def _observe(self) -> Any:
        numbers = np.arange(1, QUEUE + 1)
        self.view["mask"][:] = numbers <= self.left[:, None]
        self.view["jobs"][..., 0] = np.where(self.view["mask"], numbers, 0)
        return self.view

    def close(self) -> None:
        pass


class Drawing:
    """Any numbers at all, drawn by the rows' own luck; it notes how many rows it was shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[int, ...]] = []

    def forward_exploration(self, batch: dict[str, Any]) -> dict[str, Any]:
        jobs, luck = batch[Columns.OBS]["jobs"], batch[RNG_KEY]
        self.shown.append(tuple(jobs.shape[:2]))
        order = standard_normal(luck, jobs.shape[1:2])
        place = standard_normal(luck, (jobs.shape[1], MACHINES), stream=1)
        pace = standard_normal(luck, stream=2)
        return {
            Columns.ACTIONS: {"order": order, "place": place, "pace": pace},
            Columns.ACTION_LOGP: torch.stack([order[:, 0], pace, pace], dim=1),
        }


ROWS = Rows("mask", frozenset({"jobs", "mask"}), frozenset({"order", "place"}))


def engine() -> VectorEngine:
    def outcome(envs: Queues, index: int) -> dict[str, float]:
        return {"left": float(envs.left[index])}

    return VectorEngine(lambda count, _: Queues(count), outcome=outcome, rows=ROWS)


def assert_same(one: Recording, other: Recording) -> None:
    for name, column in {**one.observations, **one.actions}.items():
        twin = {**other.observations, **other.actions}[name]
        if isinstance(column, Ragged):
            assert np.array_equal(column.counts, twin.counts)
            column, twin = column.items, twin.items
        assert np.array_equal(column, twin), name
    assert np.array_equal(one.log_probability, other.log_probability)
    assert np.array_equal(one.rollout.reward, other.rollout.reward)


def test_a_rollout_is_the_same_whoever_shares_its_batch() -> None:
    work = [RolloutSpec(4, luck=11), RolloutSpec(2, luck=12), RolloutSpec(6, luck=13)]
    together = engine().roll_out(Drawing(), work)
    for assignment, beside in zip(work, together, strict=True):
        (alone,) = engine().roll_out(Drawing(), [assignment])
        assert_same(alone, beside)
    (other,) = engine().roll_out(Drawing(), [RolloutSpec(4, luck=12)])
    assert not np.array_equal(other.log_probability, together[0].log_probability)


def test_only_rows_in_use_of_running_episodes_are_shown() -> None:
    module = Drawing()
    engine().roll_out(module, [RolloutSpec(2, luck=1), RolloutSpec(4, luck=2)])
    assert module.shown == [(2, 4), (2, 3), (1, 2), (1, 1)]


def test_short_queues_are_shown_apart_from_long_ones() -> None:
    module = Drawing()
    work = [RolloutSpec(4 if seed % 8 == 0 else 2, luck=seed) for seed in range(64)]
    found = engine().roll_out(module, work)
    assert module.shown[:2] == [(32, 2), (32, 4)]
    for place in (0, 1, 63):
        (alone,) = engine().roll_out(Drawing(), [work[place]])
        assert_same(alone, found[place])


def test_rows_in_use_alone_are_recorded() -> None:
    first, second = engine().roll_out(Drawing(), [RolloutSpec(2, luck=1), RolloutSpec(4, luck=2)])
    seen, actions = second.observations, second.actions
    assert isinstance(seen, dict)
    assert isinstance(actions, dict)
    assert seen["jobs"].counts.tolist() == actions["place"].counts.tolist() == [4, 3, 2, 1]
    assert seen["jobs"].items[:, 0].tolist() == [1, 2, 3, 4, 1, 2, 3, 1, 2, 1]
    assert seen["mask"].items.all()
    assert seen["machines"].shape == (4, MACHINES)
    assert actions["place"].items.shape == (10, MACHINES)
    assert actions["pace"].shape == (4,)
    assert second.log_probability.shape == (4, 3)
    assert second.log_probability[:, 0] == pytest.approx(actions["order"].items[[0, 4, 7, 9]])
    assert first.decisions == 2
    assert first.rollout.time_s.tolist() == [0, 10]
    assert (first.rollout.end_s, second.rollout.end_s) == (20, 40)
    assert second.figures == {"return": -100.0, "left": 0.0}
    assert first.last is None


def test_an_episode_that_was_cut_off_shows_its_end() -> None:
    (cut_off,) = engine().roll_out(Drawing(), [RolloutSpec(3, luck=1)])
    assert cut_off.decisions == 2
    assert isinstance(cut_off.last, dict)
    assert cut_off.last["jobs"].items.tolist() == [[1]]
    assert cut_off.last["machines"].shape == (1, MACHINES)
    assert cut_off.figures["left"] == 1


def test_long_episodes_lengthen_the_film() -> None:
    class Long(Queues):
        def _observe(self) -> Any:
            self.view["mask"][:, 0] = True
            self.view["jobs"][:, 0, 0] = self.left
            return self.view

    (found,) = VectorEngine(lambda count, _: Long(count), rows=ROWS).roll_out(
        Drawing(), [RolloutSpec(200, luck=1)]
    )
    assert isinstance(found.observations, dict)
    assert found.observations["jobs"].items[:, 0].tolist() == list(range(200, 0, -1))


class Vault:
    """One game of Vaults, as PettingZoo's parallel environments behave."""

    def __init__(self, generous: bool = False) -> None:
        self.game, self.generous = Vaults(1), generous

    def reset(self, seed: int) -> tuple[Any, Any]:
        seen, _ = self.game.reset(seed=[seed])
        return {agent: own[0] for agent, own in seen.items()}, {agent: {} for agent in AGENTS}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        chosen = {agent: np.array([key]) for agent, key in actions.items()}
        seen, rewards, over, cut_off, _ = self.game.step(chosen)
        reward = {agent: float(rewards[0]) for agent in AGENTS}
        if self.generous:
            reward["left"] += 1
        return (
            {agent: own[0] for agent, own in seen.items()},
            reward,
            {agent: bool(over[0]) for agent in AGENTS},
            {agent: bool(cut_off[0]) for agent in AGENTS},
            {agent: {"time_s": 3.0 * self.game.step_now} for agent in AGENTS},
        )

    def close(self) -> None:
        pass


def teams(generous: bool = False) -> VectorEngine:
    return VectorEngine(lambda count, _: ParallelTeams([Vault(generous) for _ in range(count)]))


def test_parallel_environments_give_the_same_rollouts() -> None:
    work = [RolloutSpec(seed, luck=seed) for seed in (3, 4, 5)]
    module = keyholders()
    for one, other in zip(
        make_engine().roll_out(module, work), teams().roll_out(module, work), strict=True
    ):
        assert_same(one, other)
        assert other.rollout.end_s == 3 * STEPS  # the environment's own clock
        assert one.log_probability.shape == (STEPS, 2)


def test_agents_with_rewards_of_their_own_are_no_team() -> None:
    with pytest.raises(ValueError, match="share their reward"):
        teams(generous=True).roll_out(keyholders(), [RolloutSpec(1, luck=1)])
