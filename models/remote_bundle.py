"""Bundles at URLs: written manifest last, read through a cache on the local disk.

The cache, `~/.cache/loadmaster/bundles` or under LOADMASTER_CACHE, has a folder per manifest. The
manifest has the digest of the weights, so a cached copy is that of exactly this bundle.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from loadmaster.envs.errors import InputError
from loadmaster.models import manifest as manifests
from loadmaster.models.files import atomic_folder
from loadmaster.models.manifest import MANIFEST_FILE, Manifest, parse_manifest
from loadmaster.models.storage import Location

WEIGHTS = "weights.safetensors"
CARD = "README.md"
LARGEST = 256 << 20  # bytes of weights that are read


def put_bundle(location: Location, files: Mapping[str, bytes]) -> None:
    """Write a new bundle: what a killed writer left has no manifest, and is overwritten."""
    if MANIFEST_FILE in location.entries():
        raise InputError(f"{location} exists already; expected a folder that does not")
    for name in sorted(files, key=lambda name: name == MANIFEST_FILE):
        (location / name).write(files[name])


def fetch_bundle(location: Location) -> Path:
    """The folder of a whole local copy of a bundle."""
    content = (location / MANIFEST_FILE).read(manifests.LARGEST)
    if content is None:
        raise InputError(f"{location} has no {MANIFEST_FILE}; expected a policy bundle")
    manifest = parse_manifest(content, location)
    from loadmaster.envs.compiled import cache_root  # imports numba

    # By name as well: messages have the name of the folder.
    folder = cache_root() / "bundles" / hashlib.sha256(content).hexdigest()[:16] / location.name
    if not _is_whole(folder, manifest):
        weights = (location / WEIGHTS).read(LARGEST)
        if weights is None or hashlib.sha256(weights).hexdigest() != manifest.sha256:
            state = "is missing" if weights is None else "is damaged"
            raise InputError(f"{location / WEIGHTS} {state}; expected that of the manifest")
        card = (location / CARD).read(LARGEST) or b""
        try:
            with atomic_folder(folder, replace=True) as scratch:
                for name, data in ((WEIGHTS, weights), (CARD, card), (MANIFEST_FILE, content)):
                    (scratch / name).write_bytes(data)
        except OSError as fault:
            raise InputError(f"cannot copy {location} to {folder}: {fault.strerror}") from None
    return folder


def _is_whole(folder: Path, manifest: Manifest) -> bool:
    try:
        content = manifests.read_bounded(folder / WEIGHTS, LARGEST)
        known = manifests.read_manifest(folder)
    except InputError:
        return False
    return known == manifest and hashlib.sha256(content).hexdigest() == manifest.sha256
