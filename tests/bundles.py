"""Bundles and run folders of untrained networks for tests."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from loadmaster.models.bundle import build_network, save_bundle


def make_bundle(
    folder: Path,
    name: str | None = None,
    environment: Mapping[str, Any] | None = None,
    seed: int = 4,
    system: str = "decima",
    trained: Mapping[str, Any] | None = None,
    **network: Any,
) -> Path:
    """Save a bundle; the seed determines the weights."""
    torch.manual_seed(seed)
    save_bundle(
        folder,
        name=name or folder.name,
        system=system,
        network=network,
        weights=build_network(system, network).state_dict(),
        trained={
            "environment": dict(environment or {}),
            "command": f"loadmaster train {system} --set training.iterations=3",
            "seed": 7,
            "iterations": 3,
            "decisions": 1234,
            "machine": {"cores": 2},
            **(trained or {}),
        },
        results={"metric": "jct_s", "validation": 91.25},
    )
    return folder


def make_run(folder: Path, *kept: str, **bundle: Any) -> Path:
    """A run folder with bundles."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("seed: 7\n")
    (folder / "manifest.json").write_text(json.dumps({"system": "decima", "command": "..."}))
    for place, which in enumerate(kept):
        make_bundle(folder / which, name=folder.name, seed=place, **bundle)
    return folder
