"""The model card of a bundle, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadmaster.models.manifest import Manifest, visible

OWN_SECTIONS = ("environment", "config", "command", "notes")  # the rest of `trained` is a list


def model_card(manifest: Manifest, trained_on: str) -> str:
    """Make the card from the manifest; `trained_on` describes the workload."""
    parts = [
        f"# {manifest.name}",
        f"A learned policy of Loadmaster's system `{manifest.system}`, saved by Loadmaster "
        f"{manifest.loadmaster}. Weights: `weights.safetensors`, {manifest.size:,} bytes, sha256 "
        f"`{manifest.sha256[:16]}...`. This page is made from `manifest.json`.",
        "## What it was trained on",
        _workload(trained_on, manifest.trained.get("environment")),
        "## How it was trained",
        _training(manifest),
        "## Results",
        _results(manifest.results),
        "## Limits of use",
        _limits(manifest),
        "## To use it",
        _use(manifest),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _workload(trained_on: str, environment: Any) -> str:
    if not isinstance(environment, Mapping) or not environment:
        return f"{_cell(trained_on)}: the environment with its default settings."
    rows = [(f"`{_cell(name)}`", _cell(value)) for name, value in sorted(environment.items())]
    table = _table(("setting", "value"), rows)
    return f"{_cell(trained_on)}. What was set, all else being default:\n\n{table}"


def _training(manifest: Manifest) -> str:
    trained = manifest.trained
    others = {key: value for key, value in trained.items() if key not in OWN_SECTIONS}
    lines = [f"- {words}: {text}" for words, text in facts(others)]
    lines += [f"- network {words}: {text}" for words, text in facts(manifest.network)]
    command = trained.get("command")
    block = f"```\n{visible(str(command), most=2000)}\n```\n\n" if command else ""
    return block + "\n".join(lines)


def _results(results: Mapping[str, Any]) -> str:
    """A table of the evaluations, and a list of the other results."""
    parts = []
    if rows := evaluations(results):
        heading = ("setting", "metric", "mean", "best baseline", "its mean", "difference", "seeds")
        parts.append(
            f"{_table(heading, rows)}\n\nMeans over sequences it was not trained on, with 95% "
            "intervals; a difference is paired by sequence, and below 0 where this policy has less."
        )
    others = {key: value for key, value in results.items() if key != "evaluations"}
    parts.append("\n".join(f"- {words}: {text}" for words, text in facts(others)))
    return "\n\n".join(part for part in parts if part) or (
        "None were kept with it. `loadmaster evaluate` measures it."
    )


def evaluations(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Rows of setting, metric, mean, best baseline, its mean, difference and seeds."""
    entries = results.get("evaluations")
    return [
        (
            _cell(entry.get("setting", "-")),
            _cell(entry.get("metric", "-")),
            _estimate(entry, "mean"),
            _cell(entry.get("best_baseline", "-")),
            _estimate(entry, "baseline"),
            _estimate(entry, "difference_percent", "+.1f", "%"),
            _cell(entry.get("seeds", "-")),
        )
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, Mapping)
    ]


def _limits(manifest: Manifest) -> str:
    notes = manifest.trained.get("notes")
    own = [str(note) for note in notes] if isinstance(notes, list) else []
    lines = [
        "It has learnt from the settings above and from nothing else. On another workload, load, "
        "cluster or objective it may do worse than a simple rule: compare it with the baselines "
        "there before it decides anything that matters.",
        "Its figures come from a simulator, in which estimates are as good as the workload's own "
        "averages. A real cluster has failures, noise and jobs that the simulator has not.",
        "It gives no guarantee for a single job or decision. Where one is needed, put a rule "
        "around it.",
        *own,
    ]
    return "\n".join(f"- {_cell(line)}" for line in lines)


def _use(manifest: Manifest) -> str:
    return (
        f"```\nloadmaster evaluate {manifest.system} --policy FOLDER --against all --seeds 20\n"
        f"loadmaster evaluate {manifest.system} --policy FOLDER --explain 3\n"
        "loadmaster replay FOLDER -o replay.html\n```\n\n"
        "FOLDER is the folder of this page; a bundle that ships with Loadmaster goes by its name."
    )


def facts(values: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Flatten nested values: ("validation jct s", "91.2"); None is left out."""
    lines: list[tuple[str, str]] = []
    for key, value in values.items():
        words = f"{before}{_cell(key).replace('_', ' ')}"
        if isinstance(value, Mapping):
            lines += facts(value, f"{words} ")
        elif value is not None:
            lines.append((words, _cell(value)))
    return lines


def _estimate(entry: Mapping[str, Any], key: str, form: str = ",.1f", unit: str = "") -> str:
    value, ends = entry.get(key), entry.get(f"{key}_ci95")
    if not isinstance(value, int | float):
        return "-"
    text = f"{value:{form}}{unit}"
    if isinstance(ends, list) and len(ends) == 2 and all(isinstance(e, int | float) for e in ends):
        text += f" [{ends[0]:{form}}, {ends[1]:{form}}]"
    return text


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    """Text that cannot break out of its line or table cell."""
    text = f"{value:,.6g}" if isinstance(value, float) else " ".join(str(value).split())
    return visible(text, most=500).replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
