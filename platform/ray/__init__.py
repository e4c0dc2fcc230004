"""Ray sessions, local clusters and the service on Ray Serve."""
