"""Decision records, drift detection, lifecycle and metrics."""
