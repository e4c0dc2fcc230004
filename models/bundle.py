"""Policy bundles: a folder with `manifest.json`, `weights.safetensors` and a model card.

No file is a pickle, so loading a bundle runs no code from it. A bundle that is damaged, of another
program or of a newer format is refused before any of it is used.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from loadmaster.envs.errors import InputError
from loadmaster.envs.registry import find_system
from loadmaster.models import manifest as manifests
from loadmaster.models.card import model_card
from loadmaster.models.files import atomic_folder, atomic_write
from loadmaster.models.manifest import MANIFEST_FILE, Manifest, as_json, read_bounded
from loadmaster.models.remote_bundle import CARD, LARGEST, WEIGHTS, put_bundle
from loadmaster.models.storage import Location, Place


@dataclass(frozen=True, eq=False)
class Bundle(Manifest):
    """A saved policy."""

    weights: dict[str, Tensor]  # the network's state, by name

    def build(self, system: str = "") -> nn.Module:
        """The network with these weights; `system` refuses bundles of other systems."""
        if system not in ("", self.system):
            raise InputError(f"{self.name!r} is a bundle of {self.system!r}; expected {system!r}")
        network = build_network(self.system, self.network)
        network.load_state_dict(self.weights)
        return network.eval()


def build_network(system: str, settings: Mapping[str, Any]) -> nn.Module:
    """Build an untrained network; an InputError names an unknown system or a wrong setting."""
    network: nn.Module = find_system(system).load("network")(settings)
    return network


def save_bundle(
    folder: Place,
    *,
    name: str,
    system: str,
    network: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    trained: Mapping[str, Any],
    results: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> None:
    """Write a bundle atomically; `replace` allows an older one in its place, on local disks."""
    manifests.check_name(name)
    stored = {key: tensor.detach().cpu().clone().contiguous() for key, tensor in weights.items()}
    settings = as_json(network)
    _check_weights(stored, system, settings, f"the bundle {name!r}")
    content = safetensors.torch.save(stored)
    manifest = Manifest(
        name=name,
        system=system,
        network=settings,
        trained=as_json(trained),
        results=as_json(results or {}),
        loadmaster=version("loadmaster"),
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
    )
    found = find_system(system)
    trained_on = found.load("trained_on")(manifest) if found.has("trained_on") else ""
    files = {
        MANIFEST_FILE: manifests.manifest_text(manifest).encode(),
        WEIGHTS: content,
        CARD: model_card(manifest, trained_on).encode(),
    }
    if isinstance(folder, Location):
        put_bundle(folder, files)
        return
    if folder.exists() or folder.is_symlink():
        if not replace:
            raise InputError(f"{folder} exists already; expected a folder that does not")
        if not (folder / MANIFEST_FILE).is_file():
            raise InputError(f"{folder} is no policy bundle; only one of those is replaced")
    try:
        with atomic_folder(folder, replace=replace) as scratch:
            for file, data in files.items():
                with atomic_write(scratch / file, sync=True) as opened:
                    opened.write(data)
    except OSError as fault:
        raise InputError(f"cannot write the bundle {folder}: {fault.strerror}") from None


def load_bundle(folder: Path) -> Bundle:
    """Read and check a bundle; an InputError has the reason of a refusal."""
    manifest = manifests.read_manifest(folder)
    file = folder / WEIGHTS
    content = read_bounded(file, LARGEST)
    if len(content) != manifest.size:
        raise InputError(
            f"{file} has {len(content):,} bytes; expected the {manifest.size:,} it was saved with: "
            "copy the bundle again"
        )
    if hashlib.sha256(content).hexdigest() != manifest.sha256:
        raise InputError(
            f"{file} is damaged; expected the sha256 of the manifest: copy the bundle again"
        )
    try:
        weights = safetensors.torch.load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as fault:
        raise InputError(f"{file} is malformed; expected safetensors: {_line(fault)}") from None
    _check_weights(weights, manifest.system, manifest.network, str(folder))
    return Bundle(**vars(manifest), weights=weights)


def _check_weights(
    weights: Mapping[str, Tensor], system: str, settings: Mapping[str, Any], bundle: str
) -> None:
    """Refuse weights that are not those of the network of these settings."""
    try:
        # Shapes without memory: a bundle that describes a giant network costs nothing.
        with torch.device("meta"):
            expected = build_network(system, settings).state_dict()
    except InputError as fault:
        raise InputError(f"{bundle} cannot be used here: {fault}") from None
    except (RuntimeError, ValueError, OverflowError, MemoryError) as fault:
        raise InputError(f"{bundle} describes no possible network: {_line(fault)}") from None
    missing, surplus = expected.keys() - weights.keys(), weights.keys() - expected.keys()
    if missing or surplus:
        odd = f"lacks {min(missing)!r}" if missing else f"has the surplus {min(surplus)[:80]!r}"
        raise InputError(f"{bundle} {odd}; expected the weights of a {system} network {settings}")
    for key, tensor in expected.items():
        given = weights[key]
        if given.shape != tensor.shape or given.dtype != tensor.dtype:
            raise InputError(
                f"{bundle}: {key!r} is {_kind(given)}; expected {_kind(tensor)} "
                f"for a {system} network {settings}"
            )
        if given.is_floating_point() and not bool(torch.isfinite(given).all()):
            raise InputError(f"{bundle}: {key!r} has weights that are not finite numbers")


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _line(fault: BaseException) -> str:
    return " ".join(str(fault).split())[:200] or type(fault).__name__
