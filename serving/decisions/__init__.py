"""From a validated request to a decision: policy, guard and fallback."""
