"""Classes of a task's instances with equal load, and their share of the records.

Keys are hashed to groups, and the groups are spread over the instances as evenly as possible: some
have one group more than the others.
"""

from typing import NamedTuple

from loadmaster.envs.compiled import njit_internal
from loadmaster.envs.stream_scaling.state import COOL, HOT, JobTables, SimConstants


class InstanceClass(NamedTuple):
    size: int  # instances
    share: float  # of the task's records that they get together


@njit_internal
def instance_class(
    job: JobTables, constants: SimConstants, task: int, count: int, kind: int
) -> InstanceClass:
    """One class of the `count` instances of a task.

    HOT are those with one group more; where a key dominates, the instance of that key.
    """
    if constants.shared_queue:
        return InstanceClass(count, 1.0) if kind == COOL else InstanceClass(0, 0.0)
    groups, skew = job.key_groups[task], job.hot_share[task]
    most = (groups + count - 1) // count  # groups of the largest instance
    if skew > 0:
        hot = 1
        share = 1.0 if count == 1 else skew + (1.0 - skew) * most / groups
    else:
        hot = groups % count
        share = hot * most / groups
    return InstanceClass(hot, share) if kind == HOT else InstanceClass(count - hot, 1.0 - share)
