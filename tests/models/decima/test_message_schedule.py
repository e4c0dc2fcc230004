"""Message passing by levels equals equation 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from loadmaster.models.decima.features import stable_order
from loadmaster.models.decima.network import DagEncoder, message_schedule
from loadmaster.platform.bench.encoder import random_dags


def test_encoder_equals_the_equation_row_by_row() -> None:
    """Edges may skip levels."""
    batch, _ = random_dags(np.random.default_rng(6), dags=5, depth=6)
    rng = np.random.default_rng(7)
    pairs = rng.integers(len(batch.height), size=(40, 2))
    heights = batch.height.numpy()
    extra = torch.as_tensor(pairs[heights[pairs[:, 0]] > heights[pairs[:, 1]]])
    assert (heights[extra[:, 0]] > heights[extra[:, 1]] + 1).any()
    batch = batch._replace(
        parent=torch.cat([batch.parent, extra[:, 0]]), child=torch.cat([batch.child, extra[:, 1]])
    )
    torch.manual_seed(2)
    encoder = DagEncoder()
    assert encoder.message is not None
    assert encoder.update is not None
    embedded: list[Tensor] = []
    with torch.no_grad():
        own = encoder.prepare(batch.inputs)
        for row in range(len(own)):  # leaves first, as the rows are
            children = batch.child[batch.parent == row].tolist()
            found = own[row]
            if children:
                messages = sum(
                    (encoder.message(embedded[child]) for child in children), torch.zeros(8)
                )
                found = found + encoder.update(messages)
            embedded.append(found)
        torch.testing.assert_close(encoder(batch), torch.stack(embedded))


def test_schedule_has_every_edge_once() -> None:
    height = torch.tensor([0, 0, 0, 1, 1, 2])
    parent, child = torch.tensor([3, 5, 4, 5, 3]), torch.tensor([0, 2, 1, 3, 1])
    schedule = message_schedule(height, parent, child)
    assert schedule.rows == [3, 2, 1]
    children_and_parents = [edges.tolist() for edges in schedule.edges]
    assert children_and_parents == [[[], []], [[0, 1, 1], [0, 1, 0]], [[2, 3], [0, 0]]]


@pytest.mark.parametrize("largest", [9, 200_000])  # beyond what 16 bits hold
def test_stable_order_keeps_equal_keys_in_order(largest: int) -> None:
    keys = torch.randint(0, largest + 1, (500,), generator=torch.Generator().manual_seed(1)) // 3
    assert torch.equal(stable_order(keys), torch.argsort(keys, stable=True))
