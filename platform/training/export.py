"""Export of a run's policy as a bundle, with results of evaluations."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.models.manifest import read_bounded
from loadmaster.models.storage import Place
from loadmaster.platform.systems.bundle_ref import BundleRef, bundle_of_run, find_policy

LARGEST_SUMMARY = 16 << 20  # bytes


def export_bundle(
    run: Place, target: Place, which: str, name: str | None, evaluations: Sequence[Path]
) -> BundleRef:
    """Check and copy a run's bundle; its default name is that of the new folder."""
    from loadmaster.models.bundle import save_bundle

    source = find_policy(str(bundle_of_run(run, which).absolute())).bundle
    results = dict(source.results)
    if evaluations:
        known = results.get("evaluations")
        added = [evaluation_entry(file, source.sha256) for file in evaluations]
        results["evaluations"] = [*(known if isinstance(known, list) else []), *added]
    save_bundle(
        target,
        name=_absolute(target).name if name is None else name,
        system=source.system,
        network=source.network,
        weights=source.weights,
        trained=source.trained,
        results=results,
    )
    return find_policy(str(_absolute(target)))


def _absolute(place: Place) -> Place:
    return place.absolute() if isinstance(place, Path) else place


def evaluation_entry(file: Path, sha256: str) -> dict[str, Any]:
    """Results of the policy with these weights in a `summary.json` of `loadmaster evaluate`."""
    try:
        record = json.loads(read_bounded(file, LARGEST_SUMMARY))
        names = [
            name for name, facts in record.get("learned", {}).items() if facts["sha256"] == sha256
        ]
        if names:
            return _entry(record, names[0])
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, StopIteration):
        raise InputError(
            f"{file} is malformed; expected the summary.json of `loadmaster evaluate`"
        ) from None
    raise InputError(f"{file} has no result of these weights; expected one of this policy")


def _entry(record: dict[str, Any], name: str) -> dict[str, Any]:
    metric = next(iter(record["policies"][name]))
    own = record["policies"][name][metric]
    unit = record["metrics"][metric]["unit"]
    seeds, best = record["seeds"], record["best_baseline"]
    entry = {
        "setting": f"{record['workload']}, {record['conditions']}",
        "metric": f"{metric}, {unit}" if unit else metric,
        "mean": own["mean"],
        "mean_ci95": own["ci95"],
        "seeds": f"{seeds[0]} to {seeds[-1]}",
    }
    if best is not None:
        difference = record["differences"][name]
        entry |= {
            "best_baseline": best,
            "baseline": record["policies"][best][metric]["mean"],
            "baseline_ci95": record["policies"][best][metric]["ci95"],
        }
        if record["metrics"][metric].get("relative", True):
            entry["difference_percent"] = difference["percent"]
            entry["difference_percent_ci95"] = difference["percent_ci95"]
        else:
            entry["difference"], entry["difference_ci95"] = difference["mean"], difference["ci95"]
    return entry
