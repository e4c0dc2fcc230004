"""Children, heights and critical paths of the stages of job templates, compiled.

Apart from `jobs`, so that lists of workloads do not import numba.
"""

from loadmaster.envs.compiled import Ints, compiled, njit_inline
from loadmaster.envs.dag_scheduling.profiles import JobTemplates

UNREACHED = -1  # height of a stage in a cycle, or with one among its descendants


@compiled
def link_stages(bank: JobTemplates, unmeasured: Ints, queue: Ints) -> None:
    """Fill `child_first`, `child`, `critical_ms`, `height` and `ahead` from the other fields.

    `child_first` and `child` begin as zeros, `critical_ms` and `ahead` with each stage's own
    values, `height` as UNREACHED. `unmeasured` and `queue` are scratch, one number a stage.
    """
    find_children(bank)
    for template in range(len(bank.first_stage) - 1):
        first, end = bank.first_stage[template], bank.first_stage[template + 1]
        head, tail = first, first
        for stage in range(first, end):
            unmeasured[stage] = bank.child_first[stage + 1] - bank.child_first[stage]
            if unmeasured[stage] == 0:
                queue[tail] = stage
                tail += 1
        while head < tail:  # Kahn's algorithm, children before parents
            stage = queue[head]
            head += 1
            longest, levels, ahead = 0.0, -1, bank.ahead[stage]
            for edge in range(bank.child_first[stage], bank.child_first[stage + 1]):
                below = first + bank.child[edge]
                longest = max(longest, bank.critical_ms[below])
                levels = max(levels, bank.height[below])
                ahead[0] = max(ahead[0], bank.ahead[below, 0])
                ahead[1] = max(ahead[1], bank.ahead[below, 1])
            bank.critical_ms[stage] += longest
            bank.height[stage] = levels + 1
            for edge in range(bank.parent_first[stage], bank.parent_first[stage + 1]):
                above = first + bank.parent[edge]
                unmeasured[above] -= 1
                if unmeasured[above] == 0:
                    queue[tail] = above
                    tail += 1


@njit_inline
def find_children(bank: JobTemplates) -> None:
    """Fill `child_first` and `child`, zeros before, from the parents."""
    first_stage, parent_first, child_first = bank.first_stage, bank.parent_first, bank.child_first
    for template in range(len(first_stage) - 1):
        first = first_stage[template]
        for edge in range(parent_first[first], parent_first[first_stage[template + 1]]):
            child_first[first + bank.parent[edge] + 1] += 1
    for stage in range(1, len(child_first)):
        child_first[stage] += child_first[stage - 1]
    # Filled backwards, each entry of child_first ends as the start of its list.
    for template in range(len(first_stage) - 2, -1, -1):
        first = first_stage[template]
        for stage in range(first_stage[template + 1] - 1, first - 1, -1):
            for edge in range(parent_first[stage + 1] - 1, parent_first[stage] - 1, -1):
                above = first + bank.parent[edge] + 1
                child_first[above] -= 1
                bank.child[child_first[above]] = stage - first
    # The entries were one place ahead.
    for stage in range(1, len(child_first) - 1):
        child_first[stage] = child_first[stage + 1]
    child_first[len(child_first) - 1] = len(bank.child)
