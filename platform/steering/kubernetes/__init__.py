"""Multidimensional pod autoscaler: replicas and limits of a workload's pods in Kubernetes."""
