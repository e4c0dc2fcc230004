"""What the compiled ordering agent reads and writes: its weights, and room to work in."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from loadmaster.envs.gpu_scheduling.features import JOB_FEATURES, MACHINE_FEATURES
from loadmaster.models import lanes
from loadmaster.models.das.ordering import AttentionLayer, Gate, OrderingAgent, encode_place
from loadmaster.models.das.settings import DasSettings
from loadmaster.models.layers import Table, blocks, numbers, whole_blocks


class GateWeights(NamedTuple):
    """Matrices have a row for each input, but for the last. No gate: tables without rows."""

    tell: Table  # (MACHINE_FEATURES, D)
    tell_bias: Table  # (D,)
    told: Table  # (D, D)
    told_bias: Table  # (D,)
    open_told: Table  # (D, D) the part that hears of the cluster
    open_bias: Table  # (D,)
    open_own: Table  # (D, D) the part that hears of the job


class OrderingWeights(NamedTuple):
    """D numbers describe a job, in L layers. Outputs come first, up to whole blocks of them."""

    straight: Table  # (JOB_FEATURES,)
    embed: Table  # (D, JOB_FEATURES)
    embed_bias: Table  # (D,)
    gate: GateWeights
    norms: Table  # (2 L + 1, 2, D) scale and shift
    look: Table  # (L, 3 D, D) of which queries come out scaled
    look_bias: Table  # (L, 3 D)
    join: Table  # (L, D, D)
    join_bias: Table  # (L, D)
    think: Table  # (L, 2 D, D)
    think_bias: Table  # (L, 2 D)
    thought: Table  # (L, D, 2 D)
    thought_bias: Table  # (L, D)
    rank: Table  # (2, D)
    rank_bias: Table  # (2,)
    silent: bool  # the layers have no say yet: the straight path is all there is


class OrderingRoom(NamedTuple):
    """Room for one moment with up to C jobs; tables are cut from rows of numbers as needed."""

    inputs: Table  # (JOB_FEATURES * C,)
    known: Table  # (D * C,)
    other: Table  # (D * C,)
    wide: Table  # (3 D * C,)
    scores: Table  # (C * C,)
    keys: Table  # (heads, C * D / heads)
    sums: Table  # (2 C,)
    cluster: Table  # (4, D or MACHINE_FEATURES)
    waves: Table  # (D, C) the encoding of each place
    nothing: Table  # (C + D,) zeros
    mean: Table  # (C,) what comes out
    log_std: Table  # (C,)


def ordering_weights(agent: OrderingAgent) -> OrderingWeights:
    layers = [one for one in agent.layers if isinstance(one, AttentionLayer)]
    norms = [norm for one in layers for norm in (one.before_look, one.before_think)]
    return OrderingWeights(
        straight=numbers(agent.straight.weight[0]),
        embed=blocks(agent.embed.weight),
        embed_bias=blocks(agent.embed.bias),
        gate=_gate_weights(agent.gate, agent.embed.out_features),
        norms=np.array(
            [[numbers(one.weight), numbers(one.bias)] for one in (*norms, agent.finish)]
        ),
        look=np.array([blocks(_scaled(one.look.weight, one.heads)) for one in layers]),
        look_bias=np.array([blocks(_scaled(one.look.bias, one.heads)) for one in layers]),
        join=np.array([blocks(one.join.weight) for one in layers]),
        join_bias=np.array([blocks(one.join.bias) for one in layers]),
        think=np.array([blocks(_linear(one.think[0]).weight) for one in layers]),
        think_bias=np.array([blocks(_linear(one.think[0]).bias) for one in layers]),
        thought=np.array([blocks(_linear(one.think[2]).weight) for one in layers]),
        thought_bias=np.array([blocks(_linear(one.think[2]).bias) for one in layers]),
        rank=blocks(agent.rank.weight),
        rank_bias=blocks(agent.rank.bias),
        silent=not agent.rank.weight.any(),
    )


def _gate_weights(gate: Gate | None, width: int) -> GateWeights:
    if gate is None:
        none, nothing = np.zeros((0, width), np.float32), np.zeros(0, np.float32)
        return GateWeights(none, nothing, none, nothing, none, nothing, none)
    return GateWeights(
        tell=numbers(_linear(gate.tell[0]).weight.T),
        tell_bias=numbers(_linear(gate.tell[0]).bias),
        told=numbers(_linear(gate.tell[2]).weight.T),
        told_bias=numbers(_linear(gate.tell[2]).bias),
        open_told=numbers(gate.open.weight[:, width:].T),
        open_bias=numbers(gate.open.bias),
        open_own=blocks(gate.open.weight[:, :width]),
    )


def _scaled(look: Tensor, heads: int) -> Tensor:
    """Queries divided by the root of their length, once and for all."""
    width = len(look) // 3
    scaled = look.detach().clone()
    scaled[:width] *= (width / heads) ** -0.5
    return scaled


def ordering_room(settings: DasSettings, queue: int) -> OrderingRoom:
    columns = whole_blocks(queue, lanes.COLUMNS)
    width, spare = settings.width, 2 * lanes.OUTPUTS  # a head may end within a block

    def flat(rows: int) -> Table:
        return np.zeros((rows + spare) * columns, np.float32)

    return OrderingRoom(
        inputs=flat(JOB_FEATURES),
        known=flat(width),
        other=flat(width),
        wide=flat(3 * width),
        scores=flat(columns),
        keys=np.zeros((settings.heads, columns * (width // settings.heads)), np.float32),
        sums=flat(2),
        cluster=np.zeros((4, max(width, MACHINE_FEATURES) + spare), np.float32),
        waves=numbers(encode_place(torch.arange(columns), width).T),
        nothing=np.zeros(columns + width + spare, np.float32),
        mean=np.zeros(columns, np.float32),
        log_std=np.zeros(columns, np.float32),
    )


def _linear(layer: nn.Module) -> nn.Linear:
    assert isinstance(layer, nn.Linear)
    return layer
