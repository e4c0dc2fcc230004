"""Former place of `Worker`."""

from loadmaster.serving.worker.rpc import Worker

__all__ = ["Worker"]
