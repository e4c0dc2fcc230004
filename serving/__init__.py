"""The third floor: the decision service. It stands on `loadmaster.models` and `loadmaster.envs`."""
