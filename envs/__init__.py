"""The ground floor: simulators, workloads, observations and baselines. No torch, no Ray."""
