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
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns
from torch import Tensor, nn

from loadmaster.envs.compiled import Ints, compiled
from loadmaster.models.decima.compiled import (
    SCORE_LIMIT,
    SCORE_STAGE,
    Weights,
    perceptrons_of,
    weights_of,
)
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
from loadmaster.models.layers import Array32


class DecisionMinibatches:
    """Recorded decisions for the compiled training pass: unpadded, selected by row."""

    def __init__(self, columns: Mapping[str, Any], network: DecimaNetwork) -> None:
        """`columns` as recorded, with ragged observations."""
        self.fixed = None
        self._decisions = decisions_of(columns)
        self._block = block_for(self._decisions, weights_of(network), network.encoder.width)
        self._columns = {
            name: torch.from_numpy(column)
            for name, column in columns.items()
            if name not in (Columns.OBS, Columns.ACTIONS)
        }

    def select(self, rows: Tensor) -> dict[str, Any]:
        selected = {name: column[rows] for name, column in self._columns.items()}
        return {**selected, Columns.OBS: SelectedDecisions(self._decisions, rows, self._block)}


class SelectedDecisions(NamedTuple):
    """Some of the recorded decisions, and a block to compute with."""

    decisions: Decisions
    rows: Tensor
    block: Block


def log_probability_and_entropy(
    network: DecimaNetwork, selected: SelectedDecisions
) -> tuple[Tensor, Tensor]:
    """(rows,) log-probabilities of the recorded actions, and entropies, with gradients.

    The entropy is that of the stage plus that of the limit given the recorded stage.
    """
    found: tuple[Tensor, Tensor] = _TrainingPass.apply(  # type: ignore[no-untyped-call]
        network, selected, *network.parameters()
    )
    return found


class _TrainingPass(torch.autograd.Function):
    """The compiled passes as one operation of torch.

    The backward pass repeats the forward pass of a block: keeping all blocks would cost as much
    time in memory traffic, and 700 bytes for each stage.
    """

    @staticmethod
    def forward(
        ctx: Any, network: DecimaNetwork, selected: SelectedDecisions, *_: Tensor
    ) -> tuple[Tensor, Tensor]:
        decisions, rows, block = selected.decisions, selected.rows.numpy(), selected.block
        weights, found = weights_of(network), np.zeros((2, len(rows)), np.float32)
        run_forward(decisions, rows, weights, block, found)
        ctx.network, ctx.given = network, (decisions, rows, weights, block)
        return torch.from_numpy(found[0]), torch.from_numpy(found[1])

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        decisions, rows, weights, block = ctx.given
        given = np.stack([output.numpy() for output in outputs])  # (2, rows)
        turned = np.ascontiguousarray(weights.matrix.swapaxes(2, 3))
        gradient = Weights(*(np.zeros_like(table) for table in weights))
        run_backward(decisions, rows, weights, turned, block, given, gradient)
        by_weight = {id(weight): table for weight, table in _by_parameter(ctx.network, gradient)}
        tables = [by_weight[id(weight)] for weight in ctx.network.parameters()]
        return (None, None, *map(torch.from_numpy, tables))


def _by_parameter(
    network: DecimaNetwork, tables: Weights
) -> list[tuple[Tensor, NDArray[np.float32]]]:
    """The network's parameters, each with its part of the tables."""
    found: list[tuple[Tensor, NDArray[np.float32]]] = []
    for which, perceptron in enumerate(perceptrons_of(network)):
        layers = [layer for layer in perceptron or () if isinstance(layer, nn.Linear)]
        for place, layer in enumerate(layers):
            made, given = layer.out_features, layer.in_features
            found.append((layer.weight, tables.matrix[which, place, :made, :given]))
            found.append((layer.bias, tables.bias[which, place, :made]))
    found.append((network.tilt_stage.weight, tables.linear_stage[None]))
    if network.tilt_limit is not None:
        found.append((network.tilt_limit.weight, tables.linear_limit.reshape(1, -1)))
    return found


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
