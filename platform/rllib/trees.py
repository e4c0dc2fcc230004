"""Observations and actions as trees: a table, or a mapping of names to trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Tree = Any  # a leaf, or Mapping[str, Tree]


def mapped(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """A tree of the same form, whose leaves are `function` of the leaves in that place."""
    if not isinstance(tree, Mapping):
        return function(tree, *others)
    return {
        name: mapped(function, branch, *(other[name] for other in others))
        for name, branch in tree.items()
    }


def leaves(tree: Tree) -> Iterator[Any]:
    """From left to right."""
    if isinstance(tree, Mapping):
        for branch in tree.values():
            yield from leaves(branch)
    else:
        yield tree
