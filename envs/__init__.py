"""The ground floor: simulators, workloads, observations and baselines. No torch, no Ray.

Importing it makes the environments known to Gymnasium: `gymnasium.make("loadmaster/...")`.
"""

from loadmaster.envs.registry import register_environments

register_environments()
