"""References to policy bundles: a pretrained one's name, or path or URL of a bundle or a run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.registry import System, find_system
from loadmaster.models import manifest as manifests
from loadmaster.models.manifest import MANIFEST_FILE, Manifest, pretrained_policies, visible
from loadmaster.models.remote_bundle import fetch_bundle
from loadmaster.models.storage import Location, Place, is_remote, parse_place
from loadmaster.platform.training.mirror import PUBLISHED, read_run_manifest

if TYPE_CHECKING:
    from loadmaster.models.bundle import Bundle
    from loadmaster.platform.systems.policies import LearnedPolicy

RUN_FILE = "config.yaml"  # in every run folder
KEPT = ("best", "last")  # bundles of a run, the best first
ATTEMPTS = 3  # to read a bundle that a running training replaces


@dataclass(frozen=True)
class BundleRef:
    """A bundle whose weights are read when they are needed: lists of bundles need no torch."""

    folder: Path
    manifest: Manifest
    system: System
    source: str  # the folder, or the URL that it is a copy of

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
    found = _open(resolve_folder(spec, known), spec if is_remote(spec) else None)
    _ = found.bundle  # refuses damaged weights before any work
    return found


def is_bundle_or_run(spec: str) -> bool:
    """Whether `spec` is a pretrained bundle's name, a path or a URL."""
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


def bundle_of_run(run: Place, which: str | None = None) -> Path:
    """The folder of a run's bundle: `which`, or best before last."""
    if isinstance(run, Location):
        return _fetch_of_run(run, KEPT if which is None else (which,))
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
    path = parse_place(spec)
    if isinstance(path, Location):
        return _fetch(path)
    if not path.exists() and os.sep not in spec:
        fault = unknown_name("policy", spec, (*known, *pretrained_policies()))
        hint = "" if "did you mean" in str(fault) else ", or the folder of a bundle or run"
        raise InputError(f"{fault}{hint}")
    if (path / RUN_FILE).is_file():
        return bundle_of_run(path)
    return path


def _fetch(location: Location) -> Path:
    """A local copy of the bundle at a URL, or of the best one of the run there."""
    entries = location.entries()
    if RUN_FILE in entries:
        return _fetch_of_run(location, KEPT)
    if location.name in KEPT and entries and MANIFEST_FILE not in entries:
        return _fetch_of_run(location.parent, (location.name,))
    return fetch_bundle(location)


def _fetch_of_run(run: Location, wanted: Sequence[str]) -> Path:
    """A local copy of the first of these bundles that a run at a URL has.

    A running training may replace it meanwhile; then its manifest names another one.
    """
    for attempt in range(ATTEMPTS):
        record = read_run_manifest(run)
        if record is None:
            raise InputError(f"{run} is not a run; expected one that `loadmaster train` made")
        published = record.get(PUBLISHED, {name: name for name in run.entries()})
        name = next((name for name in wanted if name in published), None)
        if name is None:
            raise InputError(
                f"the run {run} has no {wanted[0]} policy yet; expected one, which the first "
                "validation makes"
            )
        try:
            return fetch_bundle(run / published[name])
        except InputError:
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError


def _open(folder: Path, source: str | None = None) -> BundleRef:
    manifest = manifests.read_manifest(folder)
    try:
        system = find_system(manifest.system)
    except InputError as fault:
        raise InputError(f"{folder} cannot be used here: {fault}") from None
    if not system.has("load_policy"):
        raise InputError(f"{folder} cannot be used here: system {system.name!r} runs no bundles")
    return BundleRef(folder, manifest, system, source or str(folder))
