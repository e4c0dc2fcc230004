"""The second floor: networks and policies saved as bundles. It stands on `loadmaster.envs` only."""
