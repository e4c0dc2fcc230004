"""Runs as `loadmaster train` leaves them, with the figures that a test wants."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BASELINES = {"fair": 50.0, "fifo": 90.0}


def make_run(
    folder: Path,
    *values: float,
    metric: str | None = "jct_s",
    baselines: Mapping[str, Any] = BASELINES,
    every: int = 2,
) -> Path:
    """Validated every other iteration; an iteration is 1000 decisions in 30 s. No config.yaml."""
    folder.mkdir(parents=True)
    manifest: dict[str, Any] = {"system": "decima"}
    if metric is not None:
        manifest |= {"metric": metric, "baselines": dict(baselines)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    lines = ["iteration,validation,seconds,decisions_in_all"]
    validations = {every * i: value for i, value in enumerate(values)}
    for iteration in range(every * len(values)):
        rest = f",30,{1000 * iteration}" if iteration else ",,"
        lines.append(f"{iteration},{validations.get(iteration, '')}{rest}")
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    return folder
