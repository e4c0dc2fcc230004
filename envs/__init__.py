"""Simulators, workloads, observations and baselines. Imports neither torch nor Ray.

Importing this package registers the environments with Gymnasium, so that
`gymnasium.make("loadmaster/DagScheduling-v0")` finds them.
"""

from loadmaster.envs.registry import register_environments

register_environments()
