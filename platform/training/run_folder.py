"""A run's folder.

RUN/config.yaml            the configuration; `loadmaster train SYSTEM --config` takes it
    manifest.json          versions, seed, command, git revision, machine, progress
    metrics.csv            a row an iteration
    tensorboard/           the same for TensorBoard
    curve.png              validation over decisions, drawn at the end
    checkpoints/iteration-000120/   RLlib's; of the last few
    best/, last/           bundles: the policy that validated best, and the latest
    ray.log                what Ray printed
"""

from __future__ import annotations

import csv
import datetime
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.models.files import atomic_text_file, missing_folders, remove_empty_folders
from loadmaster.platform.training.config import TrainingConfig
from loadmaster.platform.training.yaml_with_lines import read_document

CONFIG, MANIFEST, METRICS = "config.yaml", "manifest.json", "metrics.csv"


def read_config(path: Path) -> dict[str, Any]:
    """Values of a YAML file of settings."""
    return read_document(path).values


def provenance() -> dict[str, Any]:
    """Versions, command, revision and machine, for manifests."""
    import torch

    versions = {name: version(name) for name in ("ray", "torch", "numpy", "numba")}
    return {
        "loadmaster": version("loadmaster"),
        "versions": {**versions, "python": platform.python_version()},
        "command": command(),
        "revision": revision(),
        "machine": {
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
            "system": platform.system(),
        },
        "started": now(),
    }


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def command() -> str:
    return shlex.join(["loadmaster", *sys.argv[1:]])


def revision() -> str | None:
    """The checkout's git revision; None for an installed package."""
    try:
        ask = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        found = subprocess.check_output(ask, stderr=subprocess.DEVNULL, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.strip()


class RunFolder:
    """A run's files."""

    def __init__(self, path: Path, made: Sequence[Path] = ()) -> None:
        """`made`: parent folders that were created for it, the innermost first."""
        self.path, self._made = path, list(made)

    @classmethod
    def create(cls, path: Path, config: TrainingConfig, manifest: Mapping[str, Any]) -> RunFolder:
        if path.exists():
            raise InputError(
                f"{str(path)!r} exists already; expected a new folder, or --resume {path}"
            )
        run = cls(path, missing_folders(path.parent))
        try:
            (path / "checkpoints").mkdir(parents=True)
        except OSError as fault:
            raise InputError(
                f"cannot make the run's folder {str(path)!r}: {fault.strerror}; "
                "expected a new folder where one can be made"
            ) from None
        run._write_config(config)
        run._write_manifest(manifest)
        return run

    def discard(self) -> None:
        """Remove a run that failed or was stopped before its first validation."""
        if not self.rows():
            shutil.rmtree(self.path, ignore_errors=True)
            remove_empty_folders(self._made)

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
        return build_settings(kind, read_config(self.path / CONFIG))

    def update_manifest(self, **entries: Any) -> None:
        self._write_manifest({**self.manifest, **entries})

    def checkpoints(self) -> list[Path]:
        """Complete checkpoints, oldest first; partial ones have other names."""
        found = (self.path / "checkpoints").glob("iteration-*")
        return sorted(p for p in found if re.fullmatch(r"iteration-\d+", p.name) and p.is_dir())

    def latest_checkpoint(self) -> Path:
        found = self.checkpoints()
        if not found:
            raise InputError(
                f"{str(self.path)!r} has no checkpoint to resume from; "
                "expected a run that wrote its first"
            )
        return found[-1]

    def checkpoint_of(self, iteration: int) -> Path:
        return self.path / "checkpoints" / f"iteration-{iteration:06d}"

    def rows(self) -> list[dict[str, float]]:
        """Rows of metrics.csv, without empty cells; a truncated last line is left out."""
        path = self.path / METRICS
        if not path.is_file():
            return []
        whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
        rows = csv.DictReader(whole.splitlines())
        try:
            return [_row(row) for row in rows]
        except ValueError:
            raise InputError(
                f"{path}:{rows.line_num}: not a row of figures; the run is damaged"
            ) from None

    def write_rows(self, rows: Sequence[Mapping[str, float]]) -> list[str]:
        """Replace metrics.csv; the names of its columns."""
        names = list(dict.fromkeys(name for row in rows for name in row))
        lines = [",".join(names), *(csv_line(row, names) for row in rows)]
        self._write(METRICS, "\n".join(lines) + "\n")
        return names

    def resume(self, config: TrainingConfig, iteration: int) -> None:
        """Continue after `iteration` with a changed configuration; later rows are dropped."""
        self.write_rows([row for row in self.rows() if row["iteration"] <= iteration])
        self._write_config(config)
        again = {"iteration": iteration, "command": command(), "started": now()}
        resumed = [*self.manifest.get("resumed", []), again]
        self.update_manifest(status="running", resumed=resumed)

    def _write_config(self, config: TrainingConfig) -> None:
        self._write(CONFIG, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))

    def _write_manifest(self, manifest: Mapping[str, Any]) -> None:
        self._write(MANIFEST, json.dumps(manifest, indent=2) + "\n")

    def _write(self, name: str, text: str) -> None:
        with atomic_text_file(self.path / name) as file:
            file.write(text)


def _row(row: Mapping[str, str]) -> dict[str, float]:
    figures = {name: float(value) for name, value in row.items() if name and value}
    if "iteration" not in figures:
        raise ValueError("a row without its iteration")
    return figures


def csv_line(row: Mapping[str, float], names: Sequence[str]) -> str:
    """A row as metrics.csv has it."""
    return ",".join(f"{row[name]:.10g}" if name in row else "" for name in names)
