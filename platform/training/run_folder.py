"""What a run leaves on disk, and how it is found again.

RUN/config.yaml            what was set; `loadmaster train SYSTEM --config` takes it
    manifest.json          versions, seed, command, git revision, machine, how far it got
    metrics.csv            a row an iteration
    tensorboard/           the same for TensorBoard
    curve.png              validation over decisions, drawn at the end
    checkpoints/iteration-000120/   RLlib's; of the last few
    best/, last/           bundles: the policy that validated best, and the latest
    ray.log                what Ray printed meanwhile
"""

from __future__ import annotations

import contextlib
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
from loadmaster.platform.training.config import TrainingConfig

# Configurations from YAML files, and one laid over another.


def read_config(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise InputError(f"cannot read {path}: {fault.strerror}; expected a YAML file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text; expected a YAML file") from None
    except yaml.YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        problem = getattr(fault, "problem", None) or "not YAML"
        raise InputError(f"{path}{where}: {problem}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise InputError(f"{path}: a {type(values).__name__}; expected settings as key: value")
    return values


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, branch by branch."""
    whole = dict(below)
    for name, value in above.items():
        if isinstance(value, Mapping) and isinstance(whole.get(name), Mapping):
            whole[name] = merged(whole[name], value)
        else:
            whole[name] = value
    return whole


# Where a policy comes from: versions, command, revision and machine, for manifests.


def provenance() -> dict[str, Any]:
    return {
        "loadmaster": version("loadmaster"),
        "versions": {name: version(name) for name in ("ray", "torch", "numpy", "numba")}
        | {"python": platform.python_version()},
        "command": command(),
        "revision": revision(),
        "machine": machine(),
        "started": now(),
    }


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def command() -> str:
    return shlex.join(["loadmaster", *sys.argv[1:]])


def revision() -> str | None:
    """The checkout's git revision; None for an installed package."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def machine() -> dict[str, Any]:
    import torch

    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "system": platform.system(),
    }


CONFIG, MANIFEST, METRICS = "config.yaml", "manifest.json", "metrics.csv"


class RunFolder:
    """A run's files."""

    def __init__(self, path: Path, made: Sequence[Path] = ()) -> None:
        self.path = path
        self._made = made  # folders above it that were not there before, the nearest first

    @classmethod
    def create(cls, path: Path, config: TrainingConfig, manifest: Mapping[str, Any]) -> RunFolder:
        if path.exists():
            raise InputError(
                f"{str(path)!r} exists already; expected a new folder, or --resume {path}"
            )
        run = cls(path, [parent for parent in path.parents if not parent.exists()])
        try:
            (path / "checkpoints").mkdir(parents=True)
        except OSError as fault:
            raise InputError(
                f"cannot make the run's folder {str(path)!r}: {fault.strerror}; "
                "expected a new folder where one can be made"
            ) from None
        run.write_config(config)
        run.write_manifest(manifest)
        return run

    def discard(self) -> None:
        """Of a run that was refused, or stopped, before it began: as if it had not been asked."""
        if self.rows():
            return
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # another run may be in there
            for folder in self._made:
                folder.rmdir()

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
            raise InputError(
                f"{str(self.path)!r} has no checkpoint, so there is nothing to resume; "
                "expected a run that came to its first"
            )
        return found[-1]

    def checkpoint_of(self, iteration: int) -> Path:
        return self.path / "checkpoints" / f"iteration-{iteration:06d}"

    def rows(self) -> list[dict[str, float]]:
        """Of metrics.csv: every figure that was measured, by iteration."""
        path = self.path / METRICS
        if not path.is_file():
            return []
        whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")  # a cut line is no row
        rows = csv.DictReader(whole.splitlines())
        try:
            return [_figures(row) for row in rows]
        except ValueError:
            raise InputError(
                f"{path}:{rows.line_num}: not a row of figures; the run is damaged"
            ) from None

    def go_on(self, config: TrainingConfig, iteration: int) -> None:
        """Resumed after `iteration`, maybe with other settings; the manifest remembers."""
        self.rewind(iteration)
        self.write_config(config)
        manifest = self.manifest
        again = {"iteration": iteration, "command": command(), "started": now()}
        resumed = [*manifest.get("resumed", []), again]
        self.write_manifest({**manifest, "status": "running", "resumed": resumed})

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


def _figures(row: Mapping[str, str]) -> dict[str, float]:
    figures = {name: float(value) for name, value in row.items() if name and value}
    if "iteration" not in figures:
        raise ValueError("a row without its iteration")
    return figures


def cell(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"
