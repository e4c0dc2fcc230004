"""Settings of `loadmaster serve`: file, then `--set`, then options; later ones win."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings, parse_assignments
from loadmaster.models.manifest import read_manifest
from loadmaster.models.storage import is_remote
from loadmaster.platform.training.config import merged
from loadmaster.platform.training.yaml_with_lines import read_document
from loadmaster.serving.policies.store import check_bundle_files, resolve_bundle
from loadmaster.serving.settings import ServeSettings
from loadmaster.serving.system import default_systems, find_endpoint


def serve_arguments(
    file: Path | None, bundles: Sequence[str], assignments: Sequence[str], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments of `serving.app.build`, checked before anything starts."""
    tree = _read(file) if file is not None else {}
    tree = merged(tree, parse_assignments(assignments))
    tree |= {
        key: str(value) if isinstance(value, Path) else value
        for key, value in given.items()
        if value is not None
    }
    _add_bundles(tree, bundles)
    if not tree.get("systems"):
        tree["systems"] = {name: {} for name in default_systems()}
    if not isinstance(tree["systems"], dict):
        raise InputError("setting systems: expected a mapping of systems, such as decima: {}")
    for name, one in tree["systems"].items():
        tree["systems"][name] = {} if one is None else one
    settings = build_settings(ServeSettings, tree)
    for name, chosen in settings.systems.items():
        endpoint = find_endpoint(name, chosen.endpoint)
        if chosen.rule is not None and chosen.rule not in endpoint.rules:
            raise InputError(
                f"systems.{name}.rule {chosen.rule!r} is unknown; expected one of: "
                f"{', '.join(endpoint.rules)}"
            )
        chosen.guard.check_kinds(endpoint.kinds)
        folder = resolve_bundle(chosen.bundle or endpoint.pretrained)
        check_bundle_files(folder)
        if (whose := read_manifest(folder).system) != name:
            raise InputError(f"{folder} holds a policy of {whose}; expected one of {name}")
        endpoint.policy(folder)  # refuses a damaged bundle before a cluster is started
    arguments = settings.model_dump(mode="json", exclude_unset=True)
    for chosen_one in arguments["systems"].values():
        # Replicas have another working directory; at a URL they may be on another machine.
        if chosen_one.get("bundle") and not is_remote(chosen_one["bundle"]):
            chosen_one["bundle"] = str(resolve_bundle(chosen_one["bundle"]).resolve())
    for key in ("tokens", "folder"):
        if arguments.get(key):
            arguments[key] = str(Path(arguments[key]).resolve())
    return arguments


def _read(file: Path) -> dict[str, Any]:
    """Read a file of settings, or one for `serve deploy` that has them as `args`."""
    tree = read_document(file).values
    applications = tree.get("applications")
    for application in applications if isinstance(applications, list) else ():
        if isinstance(application, dict) and isinstance(application.get("args"), dict):
            return dict(application["args"])
    return tree


def _add_bundles(tree: dict[str, Any], bundles: Sequence[str]) -> None:
    for assignment in bundles:
        system, equals, spec = assignment.partition("=")
        if not (equals and system and spec):
            raise InputError(f"--bundle {assignment!r}; expected SYSTEM=FOLDER_OR_NAME")
        branch = tree.setdefault("systems", {})
        if not isinstance(branch, dict):
            raise InputError("setting systems: expected a mapping of systems")
        one = branch.get(system) or {}
        branch[system] = {**one, "bundle": spec}
