"""Former place of `DecisionResult` and `RequestOptions`."""

from loadmaster.serving.decisions.request import DecisionResult, RequestOptions

__all__ = ["DecisionResult", "RequestOptions"]
