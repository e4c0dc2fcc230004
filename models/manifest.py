"""A bundle's manifest: what a saved policy is, in JSON. Read here without torch, so that listing
the policies stays quick; `bundle.py` reads the weights.
"""

from __future__ import annotations

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

FORMAT = 1
KIND = "loadmaster-policy"
MANIFEST_FILE = "manifest.json"
LARGEST = 4 << 20  # bytes that are read of a manifest

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
    results: dict[str, Any]  # figures: "validation", and a list of "evaluations"
    loadmaster: str  # the version that wrote it
    sha256: str  # of the file of weights
    size: int  # its bytes

    @property
    def version(self) -> str:
        """Enough of the weights' digest to tell two policies apart."""
        return self.sha256[:VERSION_DIGITS]


def manifest_text(manifest: Manifest) -> str:
    """The file's text. What JSON cannot hold is written as it can: nan as null, a path as text."""
    record = {
        "kind": KIND,
        "format": FORMAT,
        "loadmaster": manifest.loadmaster,
        "name": manifest.name,
        "system": manifest.system,
        "network": manifest.network,
        "trained": manifest.trained,
        "results": manifest.results,
        "weights": {"sha256": manifest.sha256, "bytes": manifest.size},
    }
    return json.dumps(plain(record), indent=2, allow_nan=False) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle; an InputError says what is wrong with it."""
    file = folder / MANIFEST_FILE
    try:
        if not folder.is_dir():
            what = "is a file, not a folder" if folder.exists() else "does not exist"
            raise InputError(f"{folder} {what}; expected the folder of a policy bundle")
        if not file.exists():
            raise InputError(f"{folder} has no {MANIFEST_FILE}; expected a policy bundle")
    except OSError as fault:
        raise InputError(f"cannot read {folder}: {fault.strerror}") from None
    try:
        record = json.loads(
            read_bounded(file, LARGEST).decode(), parse_constant=_number, parse_float=_number
        )
    except (ValueError, RecursionError) as fault:
        if isinstance(fault, InputError):
            raise
        raise InputError(f"{file} is damaged; expected JSON: {_first_line(fault)}") from None
    return _checked(record, file)


def read_bounded(file: Path, most: int) -> bytes:
    """The content of a file of at most `most` bytes; nothing else is opened, a pipe could block."""
    try:
        facts = os.stat(file)
        if not stat.S_ISREG(facts.st_mode):
            raise InputError(f"{file} is no plain file; expected one")
        if facts.st_size > most:
            raise InputError(f"{file} has {facts.st_size:,} bytes; expected at most {most:,}")
        with file.open("rb") as opened:
            return opened.read(most)
    except OSError as fault:
        raise InputError(f"cannot read {file}: {fault.strerror}") from None


def check_name(name: str) -> None:
    """A name stands in tables and file names, and must not read as an option or a path."""
    if (
        not 0 < len(name) <= NAME_MAX
        or not name.isprintable()
        or name != name.strip()
        or name[0] in ".-"
        or "/" in name
    ):
        raise InputError(
            f"{name[:NAME_MAX]!r} cannot name a bundle; expected at most {NAME_MAX} printable "
            "characters without '/', the first no '.' or '-'"
        )


def plain(value: Any) -> Any:
    """The same as JSON can tell it."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence | set | frozenset):
        return [plain(item) for item in value]
    if hasattr(value, "item"):  # a number of numpy's or torch's
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int) else str(value)


def visible(text: str, most: int = 200) -> str:
    """What a stranger wrote, fit for a terminal: no control characters, and not without end."""
    return "".join(c if c.isprintable() else "?" for c in text[:most])


def _checked(record: Any, file: Path) -> Manifest:
    if not isinstance(record, dict) or record.get("kind") != KIND:
        hint = ""
        if any((file.parent / which / MANIFEST_FILE).is_file() for which in ("best", "last")):
            hint = f"; those of this run are {file.parent}/best and {file.parent}/last"
        raise InputError(f"{file} describes no loadmaster policy; expected a policy bundle{hint}")
    form, writer = record.get("format"), record.get("loadmaster")
    if type(form) is not int or form < 1 or not isinstance(writer, str):
        raise InputError(f"{file} is damaged; expected a format number and loadmaster's version")
    if form > FORMAT:
        raise InputError(
            f"{file.parent} was written by loadmaster {visible(writer)} in bundle format {form}; "
            f"this is loadmaster {version('loadmaster')}, which reads format {FORMAT}: upgrade it"
        )
    kinds = {"name": str, "system": str, "network": dict, "trained": dict, "results": dict}
    for key, kind in {**kinds, "weights": dict}.items():
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
        **{key: record[key] for key in kinds}, loadmaster=visible(writer), sha256=digest, size=size
    )


def _number(text: str) -> float:
    """Python would read NaN, and 1e999 as infinity."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


def _first_line(fault: BaseException) -> str:
    return "too deeply nested" if isinstance(fault, RecursionError) else str(fault).split("\n")[0]


def training_environment(manifest: Manifest, kind: type[SettingsType]) -> SettingsType:
    """The settings of the episodes that a policy has learnt from."""
    try:
        return build_settings(kind, manifest.trained.get("environment") or {})
    except (InputError, TypeError, ValueError) as fault:
        raise InputError(
            f"bundle {manifest.name!r} does not say what it was trained on: {fault}"
        ) from None


def describe_training(
    manifest: Manifest, kind: type[SettingsType], words: Callable[[SettingsType], str]
) -> str:
    """The same in words, also where nobody here can read it."""
    try:
        return words(training_environment(manifest, kind))
    except InputError:
        return "settings that this installation does not know"


# The policy bundles that ship with the package.


def pretrained_folder() -> Path:
    """Where they lie."""
    return Path(str(files("loadmaster.models"))) / "pretrained"


def pretrained_policies() -> list[str]:
    """Their names."""
    folder = pretrained_folder()
    if not folder.is_dir():
        return []
    return sorted(b.name for b in folder.iterdir() if (b / MANIFEST_FILE).is_file())
