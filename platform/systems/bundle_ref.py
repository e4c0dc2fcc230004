"""References to policy bundles: the name of a pretrained one, a bundle's folder, or a run's."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.registry import System, find_system
from loadmaster.models import manifest as manifests
from loadmaster.models.manifest import MANIFEST_FILE, Manifest, pretrained_policies, visible

if TYPE_CHECKING:
    from loadmaster.models.bundle import Bundle
    from loadmaster.platform.systems.policies import LearnedPolicy

RUN_FILE = "config.yaml"  # in every run folder
KEPT = ("best", "last")  # bundles of a run, the best first


@dataclass(frozen=True)
class BundleRef:
    """A bundle whose weights are read when they are needed: lists of bundles need no torch."""

    folder: Path
    manifest: Manifest
    system: System

    @cached_property
    def bundle(self) -> Bundle:
        from loadmaster.models.bundle import load_bundle

        return load_bundle(self.folder)

    @cached_property
    def policy(self) -> LearnedPolicy:
        return cast("LearnedPolicy", self.system.load("load_policy")(self.bundle))

    @property
    def trained_on(self) -> str:
        """Settings of the training in words."""
        return visible(self.system.load("trained_on")(self.manifest), most=400)


def find_policy(spec: str, known: Iterable[str] = ()) -> BundleRef:
    """The bundle of a name or folder, with its weights checked.

    A pretrained bundle's name comes first; `./NAME` is always a folder. The error about an unknown
    name suggests the nearest pretrained or `known` one.
    """
    found = _open(resolve_folder(spec, known))
    _ = found.bundle  # refuses damaged weights before any work
    return found


def is_bundle_or_run(spec: str) -> bool:
    """Whether `spec` is a pretrained bundle's name or a path."""
    return spec in pretrained_policies() or os.sep in spec or Path(spec).exists()


def pretrained(system: System) -> list[BundleRef]:
    """The system's pretrained bundles, sorted by name; unreadable ones are left out."""
    bundles = []
    for name in pretrained_policies():
        try:
            found = _open(manifests.pretrained_folder() / name)
        except InputError:
            continue
        if found.system.name == system.name:
            bundles.append(found)
    return bundles


def best_pretrained(system: System, settings: Any) -> BundleRef:
    """The system's pretrained bundle whose training is nearest to `settings`."""
    bundles = pretrained(system)
    if not bundles:
        raise InputError(
            f"no pretrained {system.name} policy ships with this installation; name one of yours "
            f"by --policy BUNDLE_OR_RUN, or make one: loadmaster train {system.name}"
        )
    distance = system.load("distance")
    return min(bundles, key=lambda found: distance(found.manifest, settings))


def bundle_of_run(run: Path, which: str | None = None) -> Path:
    """The folder of a run's bundle: `which`, or best before last."""
    if not (run / RUN_FILE).is_file():
        what = "is not a run" if run.exists() else "does not exist"
        raise InputError(f"{run} {what}; expected a folder that `loadmaster train` made")
    for name in KEPT if which is None else (which,):
        if (run / name / MANIFEST_FILE).exists():
            return run / name
    raise InputError(
        f"the run {run} has no {which or 'best'} policy yet; expected one, which the first "
        "validation makes"
    )


def resolve_folder(spec: str, known: Iterable[str] = ()) -> Path:
    """The folder of a bundle, given its name, folder or run."""
    if spec in pretrained_policies():
        return manifests.pretrained_folder() / spec
    path = Path(spec)
    if not path.exists() and os.sep not in spec:
        fault = unknown_name("policy", spec, (*known, *pretrained_policies()))
        hint = "" if "did you mean" in str(fault) else ", or the folder of a bundle or run"
        raise InputError(f"{fault}{hint}")
    if (path / RUN_FILE).is_file():
        return bundle_of_run(path)
    return path


def _open(folder: Path) -> BundleRef:
    manifest = manifests.read_manifest(folder)
    try:
        system = find_system(manifest.system)
    except InputError as fault:
        raise InputError(f"{folder} cannot be used here: {fault}") from None
    if not system.has("load_policy"):
        raise InputError(f"{folder} cannot be used here: system {system.name!r} runs no bundles")
    return BundleRef(folder, manifest, system)
