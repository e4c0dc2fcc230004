"""Reward of a control step: the SLO kept, and resources used.

    r = slo_weight * SP * 2 + use_weight * (RU_cpu + RU_memory),   SP = min(SLO / p99, 1)

RU are the shares of the pods' limits that are used, as means over the step, and the 2 is their
number |R|. The published formula has one weight, alpha and 1 - alpha, to which paper and slides
give opposite roles; here both have names. With a small weight on SP it pays to break the SLO, so
`slo_weight` is 0.5 or more. At the default weights a step is worth at most 2.
"""

from loadmaster.envs.compiled import compiled
from loadmaster.envs.pod_scaling.state import SimConstants

RESOURCES = 2  # CPU and memory


@compiled
def slo_preservation(slo_s: float, p99_s: float) -> float:
    """SP: 1 while the SLO holds, also without any request."""
    if p99_s <= slo_s:
        return 1.0
    return slo_s / p99_s


@compiled
def step_reward(
    constants: SimConstants, preserved: float, cpu_use: float, memory_use: float
) -> float:
    """The reward of a step with these means.

    `preserved` is SP; `cpu_use` and `memory_use` are from 0 to 1.
    """
    kept = constants.slo_weight * preserved * RESOURCES
    used = constants.use_weight * (cpu_use + memory_use)
    return kept + used
