"""A policy saved and loaded: `manifest.json`, `weights.safetensors` and a model card, in a folder.

There is no pickle anywhere, so loading a stranger's bundle runs no code of theirs. What is wrong,
damaged, foreign or newer is refused with the reason, before any of it is used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from loadmaster.envs.errors import InputError
from loadmaster.models import manifest as described
from loadmaster.models.card import model_card
from loadmaster.models.files import missing_folders, remove_empty_folders
from loadmaster.models.manifest import Manifest, manifest_text, plain, read_bounded, read_manifest
from loadmaster.models.registry import find_network

WEIGHTS = "weights.safetensors"
CARD = "README.md"
LARGEST = 256 << 20  # bytes that are read of weights


@dataclass(frozen=True, eq=False)
class Bundle(Manifest):
    """A saved policy."""

    weights: dict[str, Tensor]  # the network's state, by name

    def build(self) -> nn.Module:
        """The network with these weights."""
        network = find_network(self.system).build(self.network)
        network.load_state_dict(self.weights)
        return network.eval()


def save_bundle(
    folder: Path,
    *,
    name: str,
    system: str,
    network: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    trained: Mapping[str, Any],
    results: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> None:
    """Write a bundle, whole or not at all; `replace` lets it take the place of an older one."""
    described.check_name(name)
    kept = {key: tensor.detach().cpu().clone().contiguous() for key, tensor in weights.items()}
    settings = plain(network)
    _check_weights(kept, system, settings, f"the bundle {name!r}")
    content = safetensors.torch.save(kept)
    manifest = Manifest(
        name=name,
        system=system,
        network=settings,
        trained=plain(trained),
        results=plain(results or {}),
        loadmaster=version("loadmaster"),
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
    )
    files = {
        described.MANIFEST_FILE: manifest_text(manifest).encode(),
        WEIGHTS: content,
        CARD: model_card(manifest, find_network(system).trained_on(manifest)).encode(),
    }
    _write_folder(folder, files, replace)


def load_bundle(folder: Path) -> Bundle:
    """Read a bundle; an InputError says what is wrong with it."""
    manifest = read_manifest(folder)
    file = folder / WEIGHTS
    if not file.exists():
        raise InputError(f"{folder} has no {WEIGHTS}; expected a whole policy bundle")
    content = read_bounded(file, LARGEST)
    if len(content) != manifest.size:
        raise InputError(
            f"{file} has {len(content):,} bytes; expected the {manifest.size:,} it was saved with: "
            "copy the bundle again"
        )
    if hashlib.sha256(content).hexdigest() != manifest.sha256:
        raise InputError(
            f"{file} is damaged; expected the sha256 that the manifest tells: copy the bundle again"
        )
    try:
        weights = safetensors.torch.load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as fault:
        raise InputError(f"{file} is malformed; expected safetensors: {_line(fault)}") from None
    _check_weights(weights, manifest.system, manifest.network, str(folder))
    known = {field.name: getattr(manifest, field.name) for field in fields(manifest)}
    return Bundle(**known, weights=weights)


def _check_weights(
    weights: Mapping[str, Tensor], system: str, settings: Mapping[str, Any], whose: str
) -> None:
    """Refuse weights that the network of these settings does not have."""
    try:
        # Shapes without memory: settings that ask for a giant network cost nothing.
        with torch.device("meta"):
            expected = find_network(system).build(settings).state_dict()
    except InputError as fault:
        raise InputError(f"{whose} cannot be used here: {fault}") from None
    except (RuntimeError, ValueError, OverflowError, MemoryError) as fault:
        raise InputError(f"{whose} describes no possible network: {_line(fault)}") from None
    missing, surplus = expected.keys() - weights.keys(), weights.keys() - expected.keys()
    if missing or surplus:
        odd = f"lacks {min(missing)!r}" if missing else f"has the surplus {min(surplus)[:80]!r}"
        raise InputError(f"{whose} {odd}; expected the weights of a {system} network {settings}")
    for key, tensor in expected.items():
        given = weights[key]
        if given.shape != tensor.shape or given.dtype != tensor.dtype:
            raise InputError(
                f"{whose}: {key!r} is {_kind(given)}; expected {_kind(tensor)} "
                f"for a {system} network {settings}"
            )
        if given.is_floating_point() and not bool(torch.isfinite(given).all()):
            raise InputError(f"{whose}: {key!r} has weights that are not finite numbers")


def _write_folder(folder: Path, files: Mapping[str, bytes], replace: bool) -> None:
    """All files at once: into a folder beside it, which then takes the name."""
    if folder.exists() or folder.is_symlink():
        if not replace:
            raise InputError(f"{folder} exists already; expected a folder that does not")
        if not (folder / described.MANIFEST_FILE).is_file():
            raise InputError(f"{folder} is no policy bundle; only one of those is replaced")
    scratch, old = (
        folder.with_name(f".{folder.name}.{os.getpid()}.{state}") for state in ("partial", "old")
    )
    made = missing_folders(folder.parent)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch.mkdir()
        for name, content in files.items():
            with (scratch / name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        if replace and folder.exists():
            folder.rename(old)
        scratch.rename(folder)
    except OSError as fault:
        raise InputError(f"cannot write the bundle {folder}: {fault.strerror}") from None
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        for left in (scratch, old):
            shutil.rmtree(left, ignore_errors=True)
        if not folder.exists():
            remove_empty_folders(made)


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _line(fault: BaseException) -> str:
    return " ".join(str(fault).split())[:200] or type(fault).__name__
