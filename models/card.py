"""The model card of a bundle, in Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

from loadmaster.models.manifest import Manifest, visible

OWN_SECTIONS = ("environment", "config", "command", "notes")  # the rest of `trained` is a list

CARD = """\
# {manifest.name}

A learned policy of Loadmaster's system `{manifest.system}`, saved by Loadmaster \
{manifest.loadmaster}. Weights: `weights.safetensors`, {manifest.size:,} bytes, sha256 \
`{manifest.sha256:.16}...`. This page is generated from `manifest.json`.

## Training environment

{environment}

## Training

{training}

## Results

{results}

## Limitations

{limitations}

## Usage

```
loadmaster evaluate {manifest.system} --policy FOLDER --against all --seeds 20
loadmaster evaluate {manifest.system} --policy FOLDER --explain 3
loadmaster replay FOLDER -o replay.html
```

FOLDER is the folder of this page, or the name of a bundle that ships with Loadmaster.
"""

LIMITATIONS = (
    "It was trained in the environment above only. With another workload, load, cluster or "
    "objective it may do worse than a simple rule: compare it with the baselines there first.",
    "Its results come from a simulator, where duration estimates are the workload's own averages. "
    "A real cluster has failures, noise and jobs that the simulator does not model.",
    "It guarantees nothing for a single job or decision. Where a guarantee is needed, enforce it "
    "by a rule outside the policy.",
)


def model_card(manifest: Manifest, trained_on: str) -> str:
    """Generate the card; `trained_on` describes the training environment."""
    trained = manifest.trained
    environment = f"{_cell(trained_on)}, all settings at their defaults."
    settings = trained.get("environment")
    if settings and isinstance(settings, Mapping):
        rows = [(f"`{_cell(name)}`", _cell(value)) for name, value in sorted(settings.items())]
        table = _table(("setting", "value"), rows)
        environment = (
            f"{_cell(trained_on)}. Settings given, all others at their defaults:\n\n{table}"
        )
    others = {key: value for key, value in trained.items() if key not in OWN_SECTIONS}
    training = _list(others) + "\n" + _list(manifest.network, "network ")
    if command := trained.get("command"):
        training = f"```\n{visible(str(command), most=2000)}\n```\n\n{training}"
    notes = trained.get("notes")
    limitations = [*LIMITATIONS, *(notes if isinstance(notes, list) else [])]
    return CARD.format(
        manifest=manifest,
        environment=environment,
        training=training,
        results=_results(manifest.results),
        limitations="\n".join(f"- {_cell(line)}" for line in limitations),
    )


def _results(results: Mapping[str, Any]) -> str:
    """A table of the evaluations, and a list of the other results."""
    others = _list({key: value for key, value in results.items() if key != "evaluations"})
    heading = ("setting", "metric", "mean", "best baseline", "its mean", "difference", "seeds")
    if rows := evaluations(results):
        return (
            f"{_table(heading, rows)}\n\nMeans over sequences outside the training set, with 95% "
            "confidence intervals. Differences are paired by sequence; negative: this policy has "
            f"the lower mean.\n\n{others}"
        ).rstrip()
    return others or "None recorded. `loadmaster evaluate` measures the policy."


def evaluations(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Rows of setting, metric, mean, best baseline, its mean, difference and seeds."""
    entries = results.get("evaluations")
    return [
        _evaluation(entry)
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, Mapping)
    ]


def _evaluation(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """One row; a metric of which percentages mean nothing has its difference in its own unit."""
    absolute = "difference" in entry
    form = ",.3f" if absolute else ",.1f"
    return (
        _cell(entry.get("setting", "-")),
        _cell(entry.get("metric", "-")),
        _estimate(entry, "mean", form),
        _cell(entry.get("best_baseline", "-")),
        _estimate(entry, "baseline", form),
        _estimate(entry, "difference", "+.3f")
        if absolute
        else _estimate(entry, "difference_percent", "+.1f", "%"),
        _cell(entry.get("seeds", "-")),
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


def _list(values: Mapping[str, Any], before: str = "") -> str:
    return "\n".join(f"- {words}: {text}" for words, text in facts(values, before))


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
