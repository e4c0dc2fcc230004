"""Instances of a task and the share of its records that each gets.

Keys are hashed to groups, and the groups are spread over the instances as evenly as possible: some
have one group more than the others.
"""

from loadmaster.envs.compiled import njit_internal
from loadmaster.envs.stream_scaling.state import COOL, HOT, JobTables, Physics


@njit_internal
def instances_of(job: JobTables, physics: Physics, task: int, count: int, kind: int) -> int:
    """Instances of a class, of `count` in all.

    HOT are those with one group more; where a key dominates, the instance of that key.
    """
    if physics.shared_queue:
        return count if kind == COOL else 0
    hot = 1 if job.hot_share[task] > 0 else job.key_groups[task] % count
    return hot if kind == HOT else count - hot


@njit_internal
def class_share(job: JobTables, physics: Physics, task: int, count: int, kind: int) -> float:
    """Share of the task's records that all instances of a class get together."""
    if physics.shared_queue:
        return 1.0 if kind == COOL else 0.0
    groups, skew = job.key_groups[task], job.hot_share[task]
    most = (groups + count - 1) // count  # groups of the largest instance
    if skew > 0:
        hot = 1.0 if count == 1 else skew + (1.0 - skew) * most / groups
    else:
        hot = groups % count * most / groups
    return hot if kind == HOT else 1.0 - hot
