"""What a rule remembers between decisions: recommendations, and histograms of use."""

from typing import NamedTuple

import numpy as np

from loadmaster.envs.pod_scaling.state import PLAN_COLUMNS, Floats, Ints, SimState

REMEMBERED = 256  # recommendations, by the interval
BUCKETS = 176  # of a histogram

# Columns of `RuleState.marks`, in intervals; 0: never.
FIRST_SAMPLE, SAMPLES, RESIZED_AT, OOM_AT = range(4)
_MARKS = 4


class RuleState(NamedTuple):
    """Work tables of a rule in one episode."""

    base: Floats  # (PLAN_COLUMNS,) the first plan
    recent: Floats  # (REMEMBERED,) recommended replicas, a ring buffer
    times: Ints  # (REMEMBERED,) when they were made, in intervals
    made: Ints  # (1,) how many
    cpu: Floats  # (BUCKETS,) weights of cores that a pod used
    memory: Floats  # (BUCKETS,) weights of its MiB
    marks: Floats


def new_rule_state(state: SimState) -> RuleState:
    """Tables of a rule that begins at the present plan."""
    base = np.zeros(PLAN_COLUMNS)
    base[:] = state.plan
    return RuleState(
        base=base,
        recent=np.zeros(REMEMBERED),
        times=np.full(REMEMBERED, -1, np.int64),
        made=np.zeros(1, np.int64),
        cpu=np.zeros(BUCKETS),
        memory=np.zeros(BUCKETS),
        marks=np.zeros(_MARKS),
    )
