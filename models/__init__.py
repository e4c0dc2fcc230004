"""Networks, policies, and policies saved as bundles. Imports `loadmaster.envs` only."""
