"""Stacked perceptrons, and their forward and backward passes as plain functions.

At a few dozen units a layer, calling an operation costs more than its arithmetic, and autograd as
much again. The learner therefore calls these passes itself; `Stack` is the same for autograd. An
update of DDPG takes a third of its time with `nn.Linear` and autograd (docs/benchmarks.md).
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

FINAL = 3e-3  # initial weights of the last layers (Lillicrap et al. 2016, section 7)


class Stack(nn.Module):
    """`count` perceptrons of the same widths with weights of their own, ReLU between layers."""

    def __init__(self, count: int, widths: Sequence[int]) -> None:
        super().__init__()
        layers = list(pairwise(widths))
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(count, given, made)) for given, made in layers
        )
        self.biases = nn.ParameterList(
            nn.Parameter(torch.empty(count, 1, made)) for _, made in layers
        )
        for place, (given, _) in enumerate(layers):
            size = FINAL if place == len(layers) - 1 else given**-0.5
            nn.init.uniform_(self.weights[place], -size, size)
            nn.init.uniform_(self.biases[place], -size, size)

    def forward(self, x: Tensor) -> Tensor:
        """(count, B, outputs) of (B, inputs)."""
        found: Tensor = _Perceptrons.apply(x, *self.weights, *self.biases)  # type: ignore[no-untyped-call]
        return found

    def tables(self) -> "Tables":
        """The weights' own memory, for the passes below."""
        return Tables(
            [without_stack(table) for table in self.weights],
            [without_stack(table) for table in self.biases],
        )


class Tables(NamedTuple):
    """Weights (count, inputs, outputs) and biases (count, 1, outputs) of each layer.

    A single perceptron has no first axis: products of matrices are faster than those of stacks.
    """

    weights: Sequence[Tensor]
    biases: Sequence[Tensor]

    @property
    def all(self) -> list[Tensor]:
        """In the order of `Stack.parameters()`."""
        return [*self.weights, *self.biases]


def without_stack(table: Tensor) -> Tensor:
    """A view without the first axis where that is 1."""
    table = table.detach()
    return table[0] if len(table) == 1 else table


def forward(tables: Tables, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Outputs (count, B, outputs), or (B, outputs) of one; and the inputs of every layer."""
    *weights, last = tables.weights
    *biases, last_bias = tables.biases
    affine = torch.addmm if last.dim() == 2 else torch.baddbmm
    inputs = [x if last.dim() == 2 else x.expand(len(last), *x.shape)]
    for weight, bias in zip(weights, biases, strict=True):
        inputs.append(affine(bias, inputs[-1], weight).relu_())
    return affine(last_bias, inputs[-1], last), inputs


def backward(
    tables: Tables,
    inputs: Sequence[Tensor],
    gradient: Tensor,
    of_tables: bool = True,
    of_input: bool = False,
) -> tuple[list[Tensor], Tensor]:
    """Gradients of all tables, if wanted, and of the input (count, B, inputs), if wanted.

    `gradient` is that of the outputs.
    """
    weights = tables.weights
    multiply = torch.mm if weights[0].dim() == 2 else torch.bmm
    of_weights, of_biases = [], []
    for layer in range(len(weights) - 1, -1, -1):
        if of_tables:
            of_weights.append(multiply(inputs[layer].mT, gradient))
            of_biases.append(gradient.sum(-2, keepdim=True))
        if layer or of_input:
            # A copy: products with a transposed right side are 20 times slower in OpenBLAS.
            gradient = multiply(gradient, weights[layer].mT.contiguous())
        if layer:
            gradient = gradient.mul_(inputs[layer] > 0)
    return [*reversed(of_weights), *reversed(of_biases)], gradient


class _Perceptrons(torch.autograd.Function):
    """Both passes as one operation of autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        found, inputs = forward(_split(parameters), x)
        ctx.save_for_backward(*inputs, *parameters)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        layers = len(ctx.saved_tensors) // 3
        inputs, parameters = ctx.saved_tensors[:layers], ctx.saved_tensors[layers:]
        of_input, of_tables = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:])
        found, gradient = backward(_split(parameters), inputs, gradients[0], of_tables, of_input)
        unused = [None] * (0 if of_tables else len(parameters))
        return (gradient.sum(0) if of_input else None, *found, *unused)


def _split(parameters: Sequence[Tensor]) -> Tables:
    layers = len(parameters) // 2
    return Tables(parameters[:layers], parameters[layers:])
