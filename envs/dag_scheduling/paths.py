"""What lies ahead of every stage: the longest paths from it to its job's end."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled

UNREACHED = -1  # the height of a stage that waits for itself, or leads to one that does


@compiled
def find_children(
    first_stage: NDArray[np.int64],
    parent_first: NDArray[np.int64],
    parent: NDArray[np.int64],
    child_first: NDArray[np.int64],
    child: NDArray[np.int64],
) -> None:
    """Fill `child_first` and `child` of a JobBank, zeros before, whose fields the others are."""
    for template in range(len(first_stage) - 1):
        first = first_stage[template]
        for edge in range(parent_first[first], parent_first[first_stage[template + 1]]):
            child_first[first + parent[edge] + 1] += 1
    for stage in range(1, len(child_first)):
        child_first[stage] += child_first[stage - 1]
    # From the back, every list is filled from its end: its own start is then where it begins.
    for template in range(len(first_stage) - 2, -1, -1):
        first = first_stage[template]
        for stage in range(first_stage[template + 1] - 1, first - 1, -1):
            for edge in range(parent_first[stage + 1] - 1, parent_first[stage] - 1, -1):
                above = first + parent[edge] + 1
                child_first[above] -= 1
                child[child_first[above]] = stage - first
    # Those were one place ahead.
    for stage in range(1, len(child_first) - 1):
        child_first[stage] = child_first[stage + 1]
    child_first[len(child_first) - 1] = len(child)


@compiled
def measure_paths(
    first_stage: NDArray[np.int64],
    child_first: NDArray[np.int64],
    child: NDArray[np.int64],
    parent_first: NDArray[np.int64],
    parent: NDArray[np.int64],
    critical_ms: NDArray[np.float64],
    height: NDArray[np.int64],
    ahead: NDArray[np.float64],
    unmeasured: NDArray[np.int64],
    queue: NDArray[np.int64],
) -> None:
    """Fill `critical_ms`, `height` and `ahead` of a JobBank, whose fields the others are.

    `critical_ms` and `ahead` begin with what a stage knows of itself, `height` as UNREACHED.
    `unmeasured` and `queue` have room for a number per stage.
    """
    for template in range(len(first_stage) - 1):
        first, end = first_stage[template], first_stage[template + 1]
        head, tail = first, first
        for stage in range(first, end):
            unmeasured[stage] = child_first[stage + 1] - child_first[stage]
            if unmeasured[stage] == 0:
                queue[tail] = stage
                tail += 1
        while head < tail:  # Kahn's algorithm, from the job's end: children before parents
            stage = queue[head]
            head += 1
            longest, levels = 0.0, -1
            for edge in range(child_first[stage], child_first[stage + 1]):
                below = first + child[edge]
                longest = max(longest, critical_ms[below])
                levels = max(levels, height[below])
                ahead[stage, 0] = max(ahead[stage, 0], ahead[below, 0])
                ahead[stage, 1] = max(ahead[stage, 1], ahead[below, 1])
            critical_ms[stage] += longest
            height[stage] = levels + 1
            for edge in range(parent_first[stage], parent_first[stage + 1]):
                above = first + parent[edge]
                unmeasured[above] -= 1
                if unmeasured[above] == 0:
                    queue[tail] = above
                    tail += 1
