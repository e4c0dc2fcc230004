"""The engine KEDA: replicas of AWARE's decisions, served as an external scaler.

Nothing is written into the workload. KEDA requests the replicas by gRPC, and its
HorizontalPodAutoscaler sets them within the bounds of the user's ScaledObject.
"""
