"""The engine of GPU pods in Kubernetes: order and nodes by DAS, through kube-scheduler's extender.

The steerer binds no pod. It publishes decisions to a table that kube-scheduler requests by HTTP;
where the table has expired, or does not answer, kube-scheduler places pods by itself.
"""
