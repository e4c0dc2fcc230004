"""`loadmaster fit`: a user's trace to a workload, tuned rules, a fine-tuned policy and a report."""
