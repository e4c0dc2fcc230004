"""Simulators, workloads, observations and baselines. Imports neither torch nor Ray.

Importing this package registers the environments with Gymnasium: `gymnasium.make("loadmaster/...")`.
"""

from loadmaster.envs.registry import register_environments

register_environments()
