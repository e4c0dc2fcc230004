"""Columns of rows that differ in length."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.platform.rl.rollout import Ragged, joined, on_device, taken


def ragged(rows: list[list[int]], spare: int = 0) -> Ragged:
    flat = np.array([item for row in rows for item in row], np.float32)
    return Ragged(flat, np.array([len(row) for row in rows], np.int64), spare)


def test_a_minibatch_pads_to_its_own_longest() -> None:
    column = on_device({"x": ragged([[1], [2, 3, 4], [], [5, 6]])}, "cpu")
    assert taken(column, torch.tensor([3, 0]), "cpu")["x"].tolist() == [[5, 6], [1, 0]]
    assert taken(column, torch.tensor([2]), "cpu")["x"].shape == (1, 0)


def test_spare_places_stay_empty() -> None:
    column = on_device({"x": ragged([[1], [2, 3]], spare=1)}, "cpu")
    assert taken(column, torch.tensor([0, 1]), "cpu")["x"].tolist() == [[1, 0, 0], [2, 3, 0]]


def test_trees_of_columns_are_joined_branch_by_branch() -> None:
    first = {"obs": {"r": ragged([[1]]), "d": np.array([[7.0]])}, "a": np.array([0])}
    second = {"obs": {"r": ragged([[2, 3]]), "d": np.array([[8.0]])}, "a": np.array([1])}
    whole = on_device(joined([first, second]), "cpu")
    rows = taken(whole, torch.tensor([1, 0]), "cpu")
    assert rows["obs"]["r"].tolist() == [[2, 3], [1, 0]]
    assert rows["obs"]["d"].tolist() == [[8], [7]]
    assert rows["a"].tolist() == [1, 0]


@given(st.lists(st.lists(st.integers(1, 9), max_size=5), min_size=1, max_size=8), st.data())
def test_every_row_keeps_its_items(rows: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=8))
    column = on_device({"x": ragged(rows)}, "cpu")
    padded = taken(column, torch.tensor(chosen), "cpu")["x"]
    longest = max(len(rows[row]) for row in chosen)
    assert padded.tolist() == [rows[r] + [0] * (longest - len(rows[r])) for r in chosen]
