"""The network's weights as tables for compiled code, and which parameter is where in them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from loadmaster.models.decima import features
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.models.decima.prior import Prior, encode
from loadmaster.models.layers import Array32, round_up
from loadmaster.models.simd import OUTPUTS

PREPARE, MESSAGE, UPDATE, SUMMARISE_STAGE, SUMMARISE_JOB, SCORE_STAGE, SCORE_LIMIT = range(7)
LAYERS_MAX = 4


class Weights(NamedTuple):
    """All layers of the seven perceptrons, padded with 0 to the widest, W."""

    matrix: Array32  # (7, LAYERS_MAX, W, W) to output (row) from input (column)
    bias: Array32  # (7, LAYERS_MAX, W)
    # Row 0: number of layers, 0 for a part the network lacks; then inputs and outputs of each.
    shape: NDArray[np.int64]  # (7, 1 + LAYERS_MAX, 2)
    linear_stage: Array32  # (STAGE_TERMS,)
    linear_limit: Array32  # (LIMIT_INPUTS, 1 + JOB_INPUTS)
    prior: Prior  # empty: none
    # 1: the last layer of SCORE_STAGE, of SCORE_LIMIT is not 0. What only silent heads read is not
    # computed: a policy of linear terms and the prior alone decides 3 times faster.
    heads: NDArray[np.int64]  # (2,)
    unread: NDArray[np.int64]  # stage inputs that are set to 0


def perceptrons_of(network: DecimaNetwork) -> tuple[nn.Sequential | None, ...]:
    """The perceptrons in the order of PREPARE, MESSAGE, ..; None for a part the network lacks."""
    encoder = network.encoder
    return (
        encoder.prepare, encoder.message, encoder.update, network.summarise_stage,
        network.summarise_job, network.score_stage, network.score_limit,
    )  # fmt: skip


class Slot(NamedTuple):
    """The part of a table of `Weights` that holds a parameter of the network."""

    parameter: Tensor
    table: str
    place: tuple[int | slice, ...]

    def part_of(self, weights: Weights) -> Array32:
        part: Array32 = getattr(weights, self.table)[self.place]
        return part


def slots_of(network: DecimaNetwork) -> list[Slot]:
    """Slots of all parameters, in the order of `network.parameters()`."""
    found: list[Slot] = []
    for which, perceptron in enumerate(perceptrons_of(network)):
        for place, layer in enumerate(_layers(perceptron)):
            made, given = slice(layer.out_features), slice(layer.in_features)
            found.append(Slot(layer.weight, "matrix", (which, place, made, given)))
            found.append(Slot(layer.bias, "bias", (which, place, made)))
    found.append(Slot(network.tilt_stage.weight, "linear_stage", ()))
    if network.tilt_limit is not None:
        found.append(Slot(network.tilt_limit.weight, "linear_limit", ()))
    by_parameter = {id(slot.parameter): slot for slot in found}
    return [by_parameter[id(parameter)] for parameter in network.parameters()]


def _layers(perceptron: nn.Sequential | None) -> list[nn.Linear]:
    return [layer for layer in perceptron or () if isinstance(layer, nn.Linear)]


def weights_of(network: DecimaNetwork) -> Weights:
    """Copy the network's weights for `decide`."""
    perceptrons = perceptrons_of(network)
    bias = np.zeros((len(perceptrons), LAYERS_MAX, widest(network)), np.float32)
    shape = np.zeros((len(perceptrons), 1 + LAYERS_MAX, 2), np.int64)
    for which, perceptron in enumerate(perceptrons):
        layers = _layers(perceptron)
        shape[which, 0] = len(layers)
        for place, layer in enumerate(layers):
            shape[which, 1 + place] = layer.in_features, layer.out_features
    weights = Weights(
        matrix=np.zeros((*bias.shape, bias.shape[-1]), np.float32),
        bias=bias,
        shape=shape,
        linear_stage=np.zeros(features.STAGE_TERMS, np.float32),
        linear_limit=np.zeros((features.LIMIT_INPUTS, 1 + features.JOB_INPUTS), np.float32),
        prior=encode(network.settings.prior, network.tilts),
        heads=np.zeros(2, np.int64),
        unread=np.array([] if network.settings.path_inputs else [features.LONGEST_PATH], np.int64),
    )
    copy_parameters(slots_of(network), weights)
    return weights


def copy_parameters(slots: Sequence[Slot], weights: Weights) -> None:
    """Copy the present values of the network's parameters; those of the prior stay."""
    for slot in slots:
        part = slot.part_of(weights)
        part[...] = slot.parameter.detach().cpu().numpy().reshape(part.shape)
    for place, which in enumerate((SCORE_STAGE, SCORE_LIMIT)):
        last = weights.shape[which, 0, 0] - 1
        silent = last < 0 or not (
            weights.matrix[which, last].any() or weights.bias[which, last].any()
        )
        weights.heads[place] = not silent


def widest(network: DecimaNetwork) -> int:
    layers = [layer for perceptron in perceptrons_of(network) for layer in _layers(perceptron)]
    return round_up(max(max(one.in_features, one.out_features) for one in layers), OUTPUTS)
