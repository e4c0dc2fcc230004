"""The systems this installation can train and serve, built in or added by other packages.

A package adds one by an entry point in the group `loadmaster.systems` that refers to a `System`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files

GROUP = "loadmaster.systems"


@dataclass(frozen=True)
class System:
    """A learned decision maker: what it is called, and the environment it acts in."""

    name: str
    environment: str
    summary: str
    available: bool = True  # False: registered, but it cannot be loaded; the summary says why


def systems() -> dict[str, System]:
    """Every registered system by name."""
    found = (_load(entry) for entry in entry_points(group=GROUP))
    return {system.name: system for system in sorted(found, key=lambda system: system.name)}


def pretrained_policies() -> list[str]:
    """Names of the policy bundles that ship with the package."""
    folder = files("loadmaster.models") / "pretrained"
    if not folder.is_dir():
        return []
    return sorted(b.name for b in folder.iterdir() if (b / "manifest.json").is_file())


def _load(entry: EntryPoint) -> System:
    """Somebody else's package may fail in any way; the list still has to come out."""
    try:
        system = entry.load()
    except Exception as fault:
        return System(entry.name, "", f"cannot be loaded: {fault}", available=False)
    if not isinstance(system, System):
        return System(entry.name, "", f"{entry.value} is not a System", available=False)
    return system
