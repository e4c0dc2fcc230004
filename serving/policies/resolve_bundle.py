"""Former place of `resolve_bundle`: use `loadmaster.serving.policies.store`."""

from loadmaster.serving.policies.store import resolve_bundle

__all__ = ["resolve_bundle"]
