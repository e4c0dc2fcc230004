"""Batches of ragged columns, and rollouts of vector environments."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ray.rllib.core.columns import Columns

from loadmaster.models.keyed_random import RNG_KEY, standard_normal
from loadmaster.models.ragged import (
    Ragged,
    Windows,
    concatenated,
    leaves,
    on_device,
    taken,
    tree_map,
)
from loadmaster.platform.rl import rollout
from loadmaster.platform.rl.rollout import Recording, RolloutSpec, balanced_shares
from loadmaster.platform.rl.vector_rollout import Rows, VectorEngine

QUEUE, MACHINES = 6, 2
ROWS = Rows("mask", frozenset({"jobs", "mask"}), frozenset({"order", "place"}))


def test_windows_share_the_items_of_their_table() -> None:
    def history(first: list[int], counts: list[int], begin: int) -> Windows:
        items = np.arange(begin, begin + 6, dtype=np.float32)
        return Windows(items, np.array(first, np.int64), np.array(counts, np.int64))

    whole = concatenated([history([0, 1, 3], [2, 3, 3], 0), history([2], [4], 100)])
    assert (len(whole), len(whole.items)) == (4, 12)
    found = taken(on_device({"x": whole}, "cpu"), torch.tensor([3, 1, 0]), "cpu")["x"]
    assert found.tolist() == [[102, 103, 104, 105], [1, 2, 3, 0], [0, 1, 0, 0]]


def ragged(rows: list[list[int]], spare: int = 0) -> Ragged:
    flat = np.array([item for row in rows for item in row], np.float32)
    return Ragged(flat, np.array([len(row) for row in rows], np.int64), spare)


def test_trees_of_columns_are_concatenated_branch_by_branch() -> None:
    first = {"obs": {"r": ragged([[1]]), "d": np.array([[7.0]])}, "a": np.array([0])}
    second = {"obs": {"r": ragged([[2, 3]]), "d": np.array([[8.0]])}, "a": np.array([1])}
    both = on_device(concatenated([first, second]), "cpu")
    rows = taken(both, torch.tensor([1, 0]), "cpu")
    assert rows["obs"]["r"].tolist() == [[2, 3], [1, 0]]
    assert rows["obs"]["d"].tolist() == [[8], [7]]
    assert rows["a"].tolist() == [1, 0]


@given(st.lists(st.lists(st.integers(1, 9), max_size=5), min_size=1), st.integers(0, 2), st.data())
def test_minibatch_pads_rows_to_its_longest_and_spare_places(
    rows: list[list[int]], spare: int, data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=8))
    padded = taken(on_device({"x": ragged(rows, spare)}, "cpu"), torch.tensor(chosen), "cpu")["x"]
    width = max(len(rows[row]) for row in chosen) + spare
    assert padded.tolist() == [rows[row] + [0] * (width - len(rows[row])) for row in chosen]


def test_equal_work_is_dealt_in_turn() -> None:
    assert balanced_shares("abcde", [1.0] * 5, 2) == [["a", "c", "e"], ["b", "d"]]


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=40), st.integers(1, 8))
def test_shares_cost_about_the_same(costs: list[float], count: int) -> None:
    shares = balanced_shares(range(len(costs)), costs, count)
    assert sorted(place for share in shares for place in share) == list(range(len(costs)))
    assert all(share == sorted(share) for share in shares)
    totals = [sum(costs[place] for place in share) for share in shares]
    least = max(sum(costs) / count, max(costs))  # no split can have a smaller largest share
    assert max(totals) <= (4 / 3) * least + max(costs) / 3 + 1e-9


@pytest.mark.parametrize(("per_group", "ratio"), [(False, 16.3299 / 1.2472), (True, 1.0)])
def test_advantages_normalised_over_all_or_per_group(per_group: bool, ratio: float) -> None:
    light, heavy = [np.array([1.0, -1.0]), np.array([2.0])], [np.array([30.0, -10.0, 10.0])]
    found = rollout.normalised([light, heavy], per_group)
    assert found.mean() == pytest.approx(0, abs=1e-6)
    assert found.std() == pytest.approx(1, abs=1e-6)
    assert found[3:].std() / found[:3].std() == pytest.approx(ratio, rel=1e-3)


class Queues:
    """Job i of an episode's queue is the number i + 1; every step removes the last.

    The seed is the queue's length. Episodes of odd seeds are truncated with one job left.
    Observations are overwritten in place, as environments may do.
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
        return self._observe(), {"time_s": np.zeros(self.num_envs)}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        assert actions["order"].shape == (self.num_envs, QUEUE)
        assert actions["place"].shape == (self.num_envs, QUEUE, MACHINES)
        assert actions["pace"].shape == (self.num_envs,)
        self.left = np.maximum(self.left - 1, 0)
        odd = self.seeds % 2 == 1
        passed = 10.0 * (self.seeds - self.left)
        terminated, truncated = ~odd & (self.left == 0), odd & (self.left <= 1)
        return self._observe(), -passed, terminated, truncated, {"time_s": passed}

    def _observe(self) -> Any:
        numbers = np.arange(1, QUEUE + 1)
        self.view["mask"][:] = numbers <= self.left[:, None]
        self.view["jobs"][..., 0] = np.where(self.view["mask"], numbers, 0)
        return self.view

    def close(self) -> None:
        pass


class RandomModule:
    """Samples by each environment's RNG key, and records the shapes of its batches."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def forward_exploration(self, batch: dict[str, Any]) -> dict[str, Any]:
        jobs, key = batch[Columns.OBS]["jobs"], batch[RNG_KEY]
        self.shapes.append(tuple(jobs.shape[:2]))
        order = standard_normal(key, jobs.shape[1:2])
        place = standard_normal(key, (jobs.shape[1], MACHINES), stream=1)
        pace = standard_normal(key, stream=2)
        return {
            Columns.ACTIONS: {"order": order, "place": place, "pace": pace},
            Columns.ACTION_LOGP: torch.stack([order[:, 0], pace, pace], dim=1),
        }


def roll_out(
    *specs: RolloutSpec, module: RandomModule | None = None, envs: type[Queues] = Queues
) -> list[Recording]:
    engine = VectorEngine(
        lambda count, _: envs(count),
        outcome=lambda envs, index: {"left": float(envs.left[index])},
        rows=ROWS,
    )
    return engine.roll_out(module or RandomModule(), specs)


def assert_same(one: Any, other: Any, atol: float = 0.0) -> None:
    """Columns are equal within `atol`."""

    def compare(left: Any, right: Any) -> None:
        if isinstance(left, Ragged):
            assert left.counts.tolist() == right.counts.tolist()
            left, right = left.items, right.items
        assert left.dtype == right.dtype
        np.testing.assert_allclose(left, right, rtol=0, atol=atol)

    tree_map(compare, one, other)
    assert len(list(leaves(one))) == len(list(leaves(other)))


def assert_same_recording(one: Recording, other: Recording) -> None:
    assert_same(one.observations, other.observations)
    assert_same(one.actions, other.actions)
    assert np.array_equal(one.log_probability, other.log_probability)
    assert np.array_equal(one.rollout.reward, other.rollout.reward)


def test_rollout_does_not_depend_on_its_batch() -> None:
    specs = [RolloutSpec(4, 11), RolloutSpec(2, 12), RolloutSpec(6, 13)]
    together = roll_out(*specs)
    for spec, beside in zip(specs, together, strict=True):
        assert_same_recording(*roll_out(spec), beside)
    (other,) = roll_out(RolloutSpec(4, action_seed=12))
    assert not np.array_equal(other.log_probability, together[0].log_probability)


def test_short_queues_are_batched_apart_from_long_ones() -> None:
    module = RandomModule()
    specs = [RolloutSpec(4 if seed % 8 == 0 else 2, action_seed=seed) for seed in range(64)]
    found = roll_out(*specs, module=module)
    assert module.shapes[:2] == [(32, 2), (32, 4)]
    for place in (0, 1, 63):
        assert_same_recording(*roll_out(specs[place]), found[place])


def test_only_running_episodes_and_rows_in_use_are_passed_and_recorded() -> None:
    module = RandomModule()
    first, second = roll_out(RolloutSpec(2, 1), RolloutSpec(4, 2), module=module)
    assert module.shapes == [(2, 4), (2, 3), (1, 2), (1, 1)]
    seen, actions = second.observations, second.actions
    assert seen["jobs"].counts.tolist() == actions["place"].counts.tolist() == [4, 3, 2, 1]
    assert seen["jobs"].items[:, 0].tolist() == [1, 2, 3, 4, 1, 2, 3, 1, 2, 1]
    assert seen["mask"].items.all()
    assert seen["machines"].shape == (4, MACHINES)
    assert actions["place"].items.shape == (10, MACHINES)
    assert actions["pace"].shape == (4,)
    assert second.log_probability.shape == (4, 3)
    assert second.log_probability[:, 0] == pytest.approx(actions["order"].items[[0, 4, 7, 9]])
    assert (first.decisions, first.rollout.time_s.tolist(), first.last) == (2, [0, 10], None)
    assert (first.rollout.end_s, second.rollout.end_s) == (20, 40)
    assert second.figures == {"return": -100.0, "left": 0.0}


def test_truncated_episode_has_its_final_observation() -> None:
    (truncated,) = roll_out(RolloutSpec(3, action_seed=1))
    assert truncated.decisions == 2
    assert truncated.last["jobs"].items.tolist() == [[1]]
    assert truncated.last["machines"].shape == (1, MACHINES)
    assert truncated.figures["left"] == 1


def test_buffer_grows_with_long_episodes() -> None:
    class Long(Queues):
        def _observe(self) -> Any:
            self.view["mask"][:, 0] = True
            self.view["jobs"][:, 0, 0] = self.left
            return self.view

    (found,) = roll_out(RolloutSpec(200, action_seed=1), envs=Long)
    assert found.observations["jobs"].items[:, 0].tolist() == list(range(200, 0, -1))
