"""`loadmaster export`: save a run's policy as a bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from loadmaster.platform.cli.options import AsJson


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that train made.")],
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The folder to make.")],
    which: Annotated[
        Literal["best", "last"],
        typer.Option(help="The policy that validated best, or the latest."),
    ] = "best",
    name: Annotated[
        str | None, typer.Option(help="Name of the bundle. [default: the folder's name]")
    ] = None,
    evaluation: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="SUMMARY.json",
            help="Results of evaluate for the model card; may be repeated.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Save a run's policy as a bundle of its own.

    A bundle is a folder with the weights (safetensors), a manifest (JSON) and a model card.
    Loading it runs no code, so it is safe to share.

    Example:

        loadmaster export runs/decima-1 bundles/decima-mine

        loadmaster evaluate decima --policy bundles/decima-mine --against all
    """
    from loadmaster.models.card import evaluations, facts
    from loadmaster.platform.training.export import export_bundle

    made = export_bundle(run, bundle, which, name, evaluation or [])
    manifest = made.manifest
    if as_json:
        record = {
            "bundle": str(bundle),
            "name": manifest.name,
            "system": manifest.system,
            "sha256": manifest.sha256,
            "trained_on": made.trained_on,
            "results": manifest.results,
        }
        print(json.dumps(record, indent=2))
        return
    print(f"{manifest.name}, a policy of {manifest.system}, trained on {made.trained_on}")
    figures = {key: value for key, value in manifest.results.items() if key != "evaluations"}
    for label, text in facts({"iterations": manifest.trained.get("iterations"), **figures}):
        print(f"  {label}: {text}")
    for setting, metric, mean, baseline, _, difference, _ in evaluations(manifest.results):
        print(f"  {setting}: {metric} {mean}; against {baseline} {difference}")
    print(f"Bundle: {bundle}; its model card is {bundle / 'README.md'}")
