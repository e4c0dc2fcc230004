"""The command line `loadmaster`."""
