"""`loadmaster curve` and `loadmaster export`: learning curves and bundles of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from loadmaster.platform.cli import options
from loadmaster.platform.cli.options import AsJson, argument, option

if TYPE_CHECKING:  # the command is parsed before anything heavy is imported
    from loadmaster.envs.metrics import Measure
    from loadmaster.platform.training.history import History


def curve(
    runs: Annotated[
        list[str], argument("RUN...", "Folders or URLs of train; NAME=RUN names a curve.")
    ],
    against: Annotated[
        Literal["iterations", "decisions", "minutes"], option(None, "The x axis.")
    ] = "decisions",
    output: Annotated[
        Path, option(None, "The picture: .png, .svg or .pdf.", "--output", "-o")
    ] = Path("curves.png"),
    as_json: AsJson = False,
) -> None:
    """Draw the learning curves of runs in one picture.

    Runs may have ended, been stopped or still be running. Of a run, only manifest.json and
    metrics.csv are read.

    Example:

        loadmaster curve runs/decima-1 runs/decima-2 -o curves.png

        loadmaster curve small=runs/decima-1 large=runs/decima-2 --against minutes
    """
    from loadmaster.models.files import atomic_binary_file, image_format
    from loadmaster.platform.training.history import common_metric, read_histories

    kind = image_format(output)
    histories = read_histories(runs)
    metric = common_metric(histories)
    with atomic_binary_file(output) as file:
        from loadmaster.platform.training.curve import draw_curves

        draw_curves(histories, file, against, kind)
    if as_json:
        found = [_as_json(history) for history in histories]
        record = {"picture": str(output), "metric": metric.name, "against": against, "runs": found}
        options.print_json(record)
        return
    print_table(histories, metric)
    if len({history.best_baseline for history in histories if history.best_baseline}) > 1:
        print("Their best baselines differ: they were validated on different sequences or tasks.")
    print(f"Learning curves: {output}")


def print_table(histories: Sequence[History], metric: Measure) -> None:
    from rich.markup import escape

    rows = []
    for history in histories:
        best, baseline = history.best, history.best_baseline
        rows.append((
            escape(history.name),
            f"{history.iterations:,}",
            metric.figure(history.points[0].validation),
            metric.figure(best.validation),
            f"{best.iterations:,.0f}",
            f"{escape(baseline[0])} {metric.figure(baseline[1])}" if baseline else "-",
            metric.change(best.validation, baseline[1]) if baseline else "-",
        ))  # fmt: skip
    headings = ("run", "iterations", f"{metric.title}: first", "best", "at iteration")
    options.print_table((*headings, "best baseline", "against it"), rows, right=range(1, 7))


def _as_json(history: History) -> dict[str, Any]:
    best, baseline = history.best, history.best_baseline
    first = history.points[0].validation
    return {
        "name": history.name,
        "run": str(history.folder),
        "iterations": history.iterations,
        "first": first if math.isfinite(first) else None,
        "best": {"iteration": int(best.iterations), "value": best.validation},
        "best_baseline": {"name": baseline[0], "value": baseline[1]} if baseline else None,
    }


def export(
    run: Annotated[str, argument("RUN", "A folder that train made, or its URL.")],
    bundle: Annotated[str, argument("BUNDLE", "The folder to make, or a URL.")],
    which: Annotated[
        Literal["best", "last"], option(None, "The policy that validated best, or the latest.")
    ] = "best",
    name: Annotated[
        str | None, option(None, "Name of the bundle. [default: the folder's name]")
    ] = None,
    evaluation: Annotated[
        list[Path] | None,
        option("SUMMARY.json", "Results of evaluate for the model card; may be repeated."),
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
    from loadmaster.models.storage import parse_place
    from loadmaster.platform.training.export import export_bundle

    target = parse_place(bundle)
    made = export_bundle(parse_place(run), target, which, name, evaluation or [])
    manifest = made.manifest
    if as_json:
        options.print_json({
            "bundle": str(target),
            "name": manifest.name,
            "system": manifest.system,
            "sha256": manifest.sha256,
            "trained_on": made.trained_on,
            "results": manifest.results,
        })  # fmt: skip
        return
    print(f"{manifest.name}, a policy of {manifest.system}, trained on {made.trained_on}")
    figures = {key: value for key, value in manifest.results.items() if key != "evaluations"}
    for label, text in facts({"iterations": manifest.trained.get("iterations"), **figures}):
        print(f"  {label}: {text}")
    for setting, metric, mean, baseline, _, difference, _ in evaluations(manifest.results):
        print(f"  {setting}: {metric} {mean}; against {baseline} {difference}")
    print(f"Bundle: {target}; its model card is {target / 'README.md'}")
