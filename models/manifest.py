"""The manifest of a bundle in JSON, and the bundles that ship with the package.

Imports no torch, so that lists of bundles are quick; `bundle.py` reads the weights.
"""

import json
import math
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import SettingsType, build_settings
from loadmaster.models.storage import Place

FORMAT = 1
KIND = "loadmaster-policy"
MANIFEST_FILE = "manifest.json"
LARGEST = 4 << 20  # bytes of a manifest that are read
SECTIONS = {"name": str, "system": str, "network": dict, "trained": dict, "results": dict}
NAME_MAX = 100
VERSION_DIGITS = 12
DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Manifest:
    """A saved policy without its weights."""

    name: str
    system: str
    network: dict[str, Any]  # the network's settings
    trained: dict[str, Any]  # environment, config, command, seed, iterations, decisions, machine ..
    results: dict[str, Any]  # "validation", a list of "evaluations", ...
    loadmaster: str  # version that wrote it
    sha256: str  # of the weights file
    size: int  # of the weights file, in bytes

    @property
    def version(self) -> str:
        """The first digits of the weights' digest."""
        return self.sha256[:VERSION_DIGITS]


def manifest_text(manifest: Manifest) -> str:
    """The manifest file's text."""
    record = {
        "kind": KIND,
        "format": FORMAT,
        "loadmaster": manifest.loadmaster,
        **{name: getattr(manifest, name) for name in SECTIONS},
        "weights": {"sha256": manifest.sha256, "bytes": manifest.size},
    }
    return json.dumps(as_json(record), indent=2, allow_nan=False) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """Read and check a manifest; an InputError has the reason of a refusal."""
    file = folder / MANIFEST_FILE
    try:
        if not file.exists():
            what = f"has no {MANIFEST_FILE}"
            if not folder.is_dir():
                what = "is not a folder" if folder.exists() else "does not exist"
            raise InputError(f"{folder} {what}; expected a policy bundle")
        return parse_manifest(read_bounded(file, LARGEST), folder)
    except OSError as fault:
        raise InputError(f"cannot read {folder}: {fault.strerror}") from None


def parse_manifest(content: bytes, folder: Place) -> Manifest:
    """Check the content of a bundle's manifest; `folder` is the bundle, for errors."""
    try:
        record = json.loads(content.decode(), parse_constant=_number, parse_float=_number)
    except (ValueError, RecursionError) as fault:
        raise InputError(f"{folder / MANIFEST_FILE} is damaged; expected JSON: {fault}") from None
    return _checked(record, folder)


def read_bounded(file: Path, most: int) -> bytes:
    """Read a regular file of at most `most` bytes; a pipe, which may block, is not opened."""
    try:
        info = os.stat(file)
        if not stat.S_ISREG(info.st_mode):
            raise InputError(f"{file} is no plain file; expected one")
        if info.st_size > most:
            raise InputError(f"{file} has {info.st_size:,} bytes; expected at most {most:,}")
        with file.open("rb") as opened:
            return opened.read(most)
    except OSError as fault:
        raise InputError(f"cannot read {file}: {fault.strerror}; expected a file") from None


def check_name(name: str) -> None:
    """Refuse names that are unfit for tables and files, or look like an option or a path."""
    is_tidy = name.isprintable() and name == name.strip() and "/" not in name
    if not 0 < len(name) <= NAME_MAX or not is_tidy or name[0] in ".-":
        raise InputError(
            f"{name[:NAME_MAX]!r} cannot name a bundle; expected at most {NAME_MAX} printable "
            "characters without '/', the first no '.' or '-'"
        )


def as_json(value: Any) -> Any:
    """Convert to JSON types: NaN to None, other types to text."""
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence | set | frozenset):
        return [as_json(item) for item in value]
    if hasattr(value, "item"):  # a scalar of numpy or torch
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int) else str(value)


def visible(text: str, most: int = 200) -> str:
    """Untrusted text for a terminal: control characters replaced, length limited."""
    return "".join(c if c.isprintable() else "?" for c in text[:most])


def _checked(record: Any, folder: Place) -> Manifest:
    file = folder / MANIFEST_FILE
    if not isinstance(record, dict) or record.get("kind") != KIND:
        hint = ""
        if isinstance(folder, Path) and any(
            (folder / which / MANIFEST_FILE).is_file() for which in ("best", "last")
        ):
            hint = f"; this run has {folder}/best and {folder}/last"
        raise InputError(f"{file} describes no loadmaster policy; expected a policy bundle{hint}")
    form, writer = record.get("format"), record.get("loadmaster")
    if type(form) is not int or form < 1 or not isinstance(writer, str):
        raise InputError(f"{file} is damaged; expected a format number and loadmaster's version")
    if form > FORMAT:
        raise InputError(
            f"{folder} was written by loadmaster {visible(writer)} in bundle format {form}; "
            f"this is loadmaster {version('loadmaster')}, which reads format {FORMAT}: upgrade it"
        )
    for key, kind in {**SECTIONS, "weights": dict}.items():
        if not isinstance(record.get(key), kind):
            words = "text" if kind is str else "a mapping"
            raise InputError(f"{file} is damaged; expected {words} under {key!r}")
    try:
        check_name(record["name"])
    except InputError as fault:
        raise InputError(f"{file} is damaged: {fault}") from None
    digest, size = record["weights"].get("sha256"), record["weights"].get("bytes")
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest) or type(size) is not int:
        raise InputError(f"{file} is damaged; expected the sha256 and the bytes of the weights")
    return Manifest(
        **{key: record[key] for key in SECTIONS},
        loadmaster=visible(writer),
        sha256=digest,
        size=size,
    )


def _number(text: str) -> float:
    """Refuse NaN and numbers that overflow, which Python's JSON parser accepts."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


def training_environment(manifest: Manifest, kind: type[SettingsType]) -> SettingsType:
    """Settings of the environment that the policy was trained in."""
    try:
        return build_settings(kind, manifest.trained.get("environment") or {})
    except (InputError, TypeError, ValueError) as fault:
        reason = f"bundle {manifest.name!r} has no valid training environment: {fault}"
        raise InputError(reason) from None


def mixture_size(manifest: Manifest) -> int:
    """Number of settings that the policy was trained on in turn; 0: on a single one."""
    config = manifest.trained.get("config")
    mixture = config.get("mixture") if isinstance(config, Mapping) else None
    return len(mixture) if isinstance(mixture, list) else 0


def describe_training(
    manifest: Manifest, kind: type[SettingsType], words: Callable[[SettingsType], str]
) -> str:
    """Describe the training environment by `words`, also where its settings are unknown here."""
    if members := mixture_size(manifest):
        return f"a mixture of {members} settings"
    try:
        return words(training_environment(manifest, kind))
    except InputError:
        return "settings that this installation does not know"


def pretrained_folder() -> Path:
    """Folder of the bundles that ship with the package."""
    return Path(str(files("loadmaster.models"))) / "pretrained"


def pretrained_policies() -> list[str]:
    """Names of the bundles that ship with the package."""
    return sorted(file.parent.name for file in pretrained_folder().glob(f"*/{MANIFEST_FILE}"))
