"""Policy versions in service: loading, routing, retraining."""
