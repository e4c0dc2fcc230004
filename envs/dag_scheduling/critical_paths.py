"""Children, heights and critical paths of the stages of job templates, compiled.

Apart from `jobs`, so that lists of workloads do not import numba.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled

UNREACHED = -1  # height of a stage in a cycle, or with one among its descendants


@compiled
def find_children(
    first_stage: NDArray[np.int64],
    parent_first: NDArray[np.int64],
    parent: NDArray[np.int64],
    child_first: NDArray[np.int64],
    child: NDArray[np.int64],
) -> None:
    """Fill `child_first` and `child`, zeros before, from other fields of JobTemplates."""
    for template in range(len(first_stage) - 1):
        first = first_stage[template]
        for edge in range(parent_first[first], parent_first[first_stage[template + 1]]):
            child_first[first + parent[edge] + 1] += 1
    for stage in range(1, len(child_first)):
        child_first[stage] += child_first[stage - 1]
    # Filled backwards, each entry of child_first ends as the start of its list.
    for template in range(len(first_stage) - 2, -1, -1):
        first = first_stage[template]
        for stage in range(first_stage[template + 1] - 1, first - 1, -1):
            for edge in range(parent_first[stage + 1] - 1, parent_first[stage] - 1, -1):
                above = first + parent[edge] + 1
                child_first[above] -= 1
                child[child_first[above]] = stage - first
    # The entries were one place ahead.
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
    """Fill `critical_ms`, `height` and `ahead` from other fields of JobTemplates.

    `critical_ms` and `ahead` begin with each stage's own values, `height` as UNREACHED.
    `unmeasured` and `queue` are scratch, one number a stage.
    """
    for template in range(len(first_stage) - 1):
        first, end = first_stage[template], first_stage[template + 1]
        head, tail = first, first
        for stage in range(first, end):
            unmeasured[stage] = child_first[stage + 1] - child_first[stage]
            if unmeasured[stage] == 0:
                queue[tail] = stage
                tail += 1
        while head < tail:  # Kahn's algorithm, children before parents
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
