"""Which bundle somebody means: one that ships with the package by name, others by folder."""

from __future__ import annotations

import os
from pathlib import Path

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.models.manifest import MANIFEST_FILE, pretrained_folder, pretrained_policies


def resolve_bundle(spec: str) -> Path:
    """The folder of a pretrained bundle's name, or of a path to a bundle."""
    known = pretrained_policies()
    if spec in known:
        return pretrained_folder() / spec
    folder = Path(spec)
    try:
        if os.sep not in spec and not folder.exists():
            raise unknown_name("bundle", spec[:200], known)
        if (folder / MANIFEST_FILE).is_file():
            return folder
    except OSError as fault:  # a name that is too long, a folder that is closed to us
        raise InputError(f"cannot read {spec[:200]!r}: {fault.strerror}") from None
    raise InputError(f"{spec[:200]!r} is no policy bundle; expected a folder with {MANIFEST_FILE}")
