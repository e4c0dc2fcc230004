"""Log-probabilities of recorded decisions and their gradient, compiled.

The training pass on CPUs. It runs the same network as `network.py`, in blocks of a thousand stages
whose tables stay in the cache, and propagates the gradient back through them. Measured on one core
with 1,000 decisions of 94 stages, alternating in one process: 57 microseconds a decision, 124 in
torch, which on a machine with other busy processes becomes many times slower.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from torch import Tensor

from loadmaster.envs.compiled import Ints, compiled
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.models.decima.training_backward import back_propagate, d_scores
from loadmaster.models.decima.training_block import (
    Block,
    Decisions,
    block_for,
    decisions_of,
    lay_out,
)
from loadmaster.models.decima.training_forward import entropy_of, propagate
from loadmaster.models.decima.weights import (
    SCORE_LIMIT,
    SCORE_STAGE,
    Slot,
    Weights,
    copy_parameters,
    slots_of,
    weights_of,
)
from loadmaster.models.layers import Array32


class DecisionMinibatches:
    """Recorded decisions for the compiled training pass: unpadded, selected by row."""

    def __init__(self, columns: Mapping[str, Any], network: DecimaNetwork) -> None:
        """`columns` as recorded, with ragged observations."""
        self.fixed = None
        self._decisions, weights = decisions_of(columns), weights_of(network)
        self._network = NetworkTables(
            weights=weights,
            slots=slots_of(network),
            block=block_for(self._decisions, weights, network.encoder.width),
        )
        self._columns = {
            name: torch.from_numpy(column)
            for name, column in columns.items()
            if name not in (Columns.OBS, Columns.ACTIONS)
        }

    def select(self, rows: Tensor) -> dict[str, Any]:
        selected = {name: column[rows] for name, column in self._columns.items()}
        return {**selected, Columns.OBS: SelectedDecisions(self._decisions, rows, self._network)}


class NetworkTables(NamedTuple):
    """What all minibatches of one recording share: walking over a network's parts takes 1 ms."""

    weights: Weights
    slots: list[Slot]
    block: Block


class SelectedDecisions(NamedTuple):
    """Some of the recorded decisions, and the tables to compute with."""

    decisions: Decisions
    rows: Tensor
    network: NetworkTables


def log_probability_and_entropy(selected: SelectedDecisions) -> tuple[Tensor, Tensor]:
    """(rows,) log-probabilities of the recorded actions, and entropies, with gradients.

    The entropy is that of the stage plus that of the limit given the recorded stage.
    """
    parameters = (slot.parameter for slot in selected.network.slots)
    found: tuple[Tensor, Tensor] = _TrainingPass.apply(  # type: ignore[no-untyped-call]
        selected, *parameters
    )
    return found


class _TrainingPass(torch.autograd.Function):
    """The compiled passes as one operation of torch.

    The backward pass repeats the forward pass of a block: keeping all blocks would cost as much
    time in memory traffic, and 700 bytes for each stage.
    """

    @staticmethod
    def forward(ctx: Any, selected: SelectedDecisions, *_: Tensor) -> tuple[Tensor, Tensor]:
        (weights, slots, block), rows = selected.network, selected.rows.numpy()
        copy_parameters(slots, weights)
        found = np.zeros((2, len(rows)), np.float32)
        run_forward(selected.decisions, rows, weights, block, found)
        ctx.selected = selected
        return torch.from_numpy(found[0]), torch.from_numpy(found[1])

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        decisions, rows, (weights, slots, block) = ctx.selected
        given = np.stack([output.numpy() for output in outputs])  # (2, rows)
        turned = np.ascontiguousarray(weights.matrix.swapaxes(2, 3))
        gradient = Weights(*(np.zeros_like(table) for table in weights))
        run_backward(decisions, rows.numpy(), weights, turned, block, given, gradient)
        tables = (
            torch.from_numpy(slot.part_of(gradient).reshape(slot.parameter.shape)) for slot in slots
        )
        return (None, *tables)


@compiled
def run_forward(
    decisions: Decisions, rows: Ints, weights: Weights, block: Block, out: Array32
) -> None:
    """Write log-probabilities and entropies of `rows` into `out` (2, rows)."""
    first = 0
    while first < len(rows):
        end = lay_out(decisions, rows, first, block)
        propagate(decisions, rows, first, weights, block)
        for place in range(end - first):
            row = first + place
            stage, limit = block.chosen[place]
            out[0, row] = block.log_probability[0, stage] + block.log_probability[1, limit]
            out[1, row] = entropy_of(block.log_probability[0], block.legal_first, place)
            out[1, row] += entropy_of(block.log_probability[1], block.limit_first, place)
        first = end


@compiled
def run_backward(
    decisions: Decisions,
    rows: Ints,
    weights: Weights,
    turned: Array32,
    block: Block,
    given: Array32,
    gradient: Weights,
) -> None:
    """Add the gradient of sum(given * outputs of `run_forward`) to `gradient`.

    `turned` holds the transposed matrices, `given` (2, rows) the weights of the outputs.
    """
    first = 0
    while first < len(rows):
        end = lay_out(decisions, rows, first, block)
        propagate(decisions, rows, first, weights, block)
        d_scores(block, given, first, 0, block.legal_first, SCORE_STAGE, weights)
        d_scores(block, given, first, 1, block.limit_first, SCORE_LIMIT, weights)
        back_propagate(weights, turned, block, gradient)
        first = end
