"""A run's folder.

RUN/config.yaml            the configuration; `loadmaster train SYSTEM --config` takes it
    manifest.json          versions, seed, command, git revision, machine, progress
    metrics.csv            a row an iteration
    tensorboard/           the same for TensorBoard
    curve.png              validation over decisions, drawn at the end
    checkpoints/iteration-000120/   RLlib's; of the last few
    best/, last/           bundles: the policy that validated best, and the latest
    replay/                transitions of an off-policy training, which checkpoints refer to
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
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.models.files import atomic_text_file, missing_folders, remove_empty_folders
from loadmaster.models.storage import Location, Place
from loadmaster.platform.training.config import BaseConfig
from loadmaster.platform.training.mirror import RunMirror
from loadmaster.platform.training.yaml_with_lines import LARGEST, parse_document, read_document

CONFIG, MANIFEST, METRICS = "config.yaml", "manifest.json", "metrics.csv"


def read_config(place: Place) -> dict[str, Any]:
    """Values of a YAML file of settings."""
    if isinstance(place, Path):
        return read_document(place).values
    if (content := place.read(LARGEST)) is None:
        raise InputError(f"{place} does not exist; expected a YAML file")
    return parse_document(content.decode("utf-8", "replace"), str(place)).values


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
    """A run's files; those of a run at a URL are a local copy, which `publish` writes there."""

    def __init__(
        self, path: Path, made: Sequence[Path] = (), mirror: RunMirror | None = None
    ) -> None:
        """`made`: parent folders that were created for it, the innermost first."""
        self.path, self._made, self._mirror = path, list(made), mirror

    @property
    def place(self) -> Place:
        """The path or URL that the user gave."""
        return self.path if self._mirror is None else self._mirror.location

    @classmethod
    def create(cls, place: Place, config: BaseConfig, manifest: Mapping[str, Any]) -> RunFolder:
        if isinstance(place, Location):
            return cls._create_at(place, config, manifest)
        path = place
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

    @classmethod
    def _create_at(
        cls, location: Location, config: BaseConfig, manifest: Mapping[str, Any]
    ) -> RunFolder:
        """A run at a URL, where only the configuration of a killed start may be."""
        if location.entries() - {CONFIG}:
            raise InputError(
                f"{str(location)!r} exists already; expected a new folder, or --resume {location}"
            )
        mirror = RunMirror(location, MANIFEST)
        run = cls(mirror.folder, mirror=mirror)
        (run.path / "checkpoints").mkdir()
        run._write_config(config)
        run._write_manifest(manifest)
        mirror.publish_first()
        return run

    def publish(self) -> None:
        """Make what was written so far visible at the run's URL, if it has one."""
        if self._mirror is not None:
            self._mirror.publish()

    def released(self) -> AbstractContextManager[None]:
        """Publish at the end and remove the local copy of a run at a URL."""
        return nullcontext() if self._mirror is None else self._mirror.released()

    def discard(self) -> None:
        """Remove a run that failed or was stopped before its first validation."""
        if self._mirror is not None and not self.rows():
            self._mirror.discard()
        elif not self.rows():
            shutil.rmtree(self.path, ignore_errors=True)
            remove_empty_folders(self._made)

    @classmethod
    def open(cls, place: Place) -> RunFolder:
        if isinstance(place, Location):
            mirror = RunMirror(place, MANIFEST)
            try:
                mirror.fetch()
            except InputError:
                mirror.remove_local()
                raise
            return cls(mirror.folder, mirror=mirror)
        path = place
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

    def config(self, kind: type[BaseConfig]) -> BaseConfig:
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

    def resume(self, config: BaseConfig, iteration: int) -> None:
        """Continue after `iteration` with a changed configuration; later rows are dropped."""
        self.write_rows([row for row in self.rows() if row["iteration"] <= iteration])
        self._write_config(config)
        again = {"iteration": iteration, "command": command(), "started": now()}
        resumed = [*self.manifest.get("resumed", []), again]
        self.update_manifest(status="running", resumed=resumed)

    def _write_config(self, config: BaseConfig) -> None:
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
