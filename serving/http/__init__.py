"""HTTP interface of the decision service."""
