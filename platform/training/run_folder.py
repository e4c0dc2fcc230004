"""What a run leaves on disk, and how it is found again.

RUN/config.yaml            what was set; `loadmaster train SYSTEM --config` takes it
    manifest.json          versions, seed, command, git revision, machine, how far it got
    metrics.csv            a row an iteration
    tensorboard/           the same for TensorBoard
    checkpoints/iteration-000120/   RLlib's; of the last few
    best/, last/           bundles: the policy that validated best, and the latest
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.platform.training.config import TrainingConfig

CONFIG, MANIFEST, METRICS = "config.yaml", "manifest.json", "metrics.csv"


class RunFolder:
    """A run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: TrainingConfig, manifest: Mapping[str, Any]) -> RunFolder:
        if path.exists():
            raise InputError(
                f"{str(path)!r} exists already; expected a new folder, or --resume {path}"
            )
        (path / "checkpoints").mkdir(parents=True)
        run = cls(path)
        run.write_config(config)
        run.write_manifest(manifest)
        return run

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        if not (path / MANIFEST).is_file() or not (path / CONFIG).is_file():
            raise InputError(
                f"{str(path)!r} is not a run; expected a folder that `loadmaster train` made, "
                f"with {MANIFEST} and {CONFIG}"
            )
        return cls(path)

    @property
    def manifest(self) -> dict[str, Any]:
        try:
            found = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))
        except ValueError:
            raise InputError(f"{self.path / MANIFEST} is not JSON; the run is damaged") from None
        if not isinstance(found, dict) or "system" not in found:
            raise InputError(f"{self.path / MANIFEST} names no system; the run is damaged")
        return found

    def config(self, kind: type[TrainingConfig]) -> TrainingConfig:
        values = yaml.safe_load((self.path / CONFIG).read_text(encoding="utf-8"))
        return build_settings(kind, values)

    def write_config(self, config: TrainingConfig) -> None:
        self._write(CONFIG, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        self._write(MANIFEST, json.dumps(manifest, indent=2) + "\n")

    def checkpoints(self) -> list[Path]:
        """Oldest first; those half written have other names."""
        found = (self.path / "checkpoints").glob("iteration-*")
        return sorted(p for p in found if re.fullmatch(r"iteration-\d+", p.name) and p.is_dir())

    def latest_checkpoint(self) -> Path:
        found = self.checkpoints()
        if not found:
            raise InputError(f"{str(self.path)!r} has no checkpoint yet; nothing to resume from")
        return found[-1]

    def checkpoint_of(self, iteration: int) -> Path:
        return self.path / "checkpoints" / f"iteration-{iteration:06d}"

    def rows(self) -> list[dict[str, float]]:
        """Of metrics.csv: every figure that was measured, by iteration."""
        path = self.path / METRICS
        if not path.is_file():
            return []
        with path.open(encoding="utf-8", newline="") as file:
            return [
                {name: float(value) for name, value in row.items() if name and value}
                for row in csv.DictReader(file)
            ]

    def rewind(self, iteration: int) -> list[dict[str, float]]:
        """Drop the rows past a checkpoint: a killed run got further than it could save."""
        kept = [row for row in self.rows() if row["iteration"] <= iteration]
        names = list(dict.fromkeys(name for row in kept for name in row))
        lines = [",".join(names)]
        lines += [",".join(cell(row.get(name)) for name in names) for row in kept]
        self._write(METRICS, "\n".join(lines) + "\n" if kept else "")
        return kept

    def _write(self, name: str, text: str) -> None:
        scratch = self.path / f".{name}.{os.getpid()}.partial"
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(self.path / name)


def cell(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"
