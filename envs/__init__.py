"""Simulators, workloads, observations and baselines, without torch or Ray.

Importing the package registers the environments: `gymnasium.make("loadmaster/...")`.
"""

from loadmaster.envs.registry import register_environments

register_environments()
