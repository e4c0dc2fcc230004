"""DAG scheduling: which stage gets the free executors next, and how many its job may hold."""
