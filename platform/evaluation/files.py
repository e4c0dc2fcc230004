"""The output folder of an evaluation: JSON, CSV tables and charts, all of them or none."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadmaster.envs.errors import InputError
from loadmaster.models.files import atomic_folder, missing_folders, remove_empty_folders
from loadmaster.models.storage import check_local
from loadmaster.platform.evaluation.adapters import Episodes, learned_records
from loadmaster.platform.evaluation.comparison import Comparison
from loadmaster.platform.evaluation.statistics import (
    Difference,
    Interval,
    Summary,
    interval_ends,
    rounded,
)

if TYPE_CHECKING:  # slow to import, and needed by the tables only
    import pandas as pd

SUMMARY_JSON = "summary.json"


def check_writable(folder: Path) -> None:
    """Refuse an --output that cannot be written, before the work starts; leave nothing there."""
    check_local(folder, "--output")
    made = missing_folders(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as fault:
        raise InputError(
            f"cannot write to --output {str(folder)!r}: {fault.strerror}; "
            "expected a folder that can be made or written to"
        ) from None
    finally:
        remove_empty_folders(made)


@contextmanager
def output_folder(folder: Path) -> Iterator[Path]:
    """Yield a scratch folder whose files move to `folder` on success; an error removes it.

    Other files of an existing folder stay; files of the same name are replaced.
    """
    check_writable(folder)
    target = folder / ".new" if folder.is_dir() else folder
    with atomic_folder(target) as scratch:
        yield scratch
    if target != folder:
        for file in sorted(target.iterdir()):
            file.replace(folder / file.name)
        target.rmdir()


def episode_table(comparison: Comparison) -> pd.DataFrame:
    """One row per policy and seed."""
    import pandas as pd

    names, seeds = [metric.name for metric in comparison.metrics], pd.Index(comparison.seeds)
    values = comparison.values.items()
    parts = {policy: pd.DataFrame(each.T, seeds, names) for policy, each in values}
    return pd.concat(parts, names=["policy", "seed"]).reset_index()


def job_table(comparison: Comparison, episodes: Episodes) -> pd.DataFrame | None:
    """One row per policy, seed and job; None where the environment has no jobs."""
    import pandas as pd

    if comparison.setup.job_columns is None:
        return None
    parts = {
        (policy, seed): pd.DataFrame(comparison.setup.job_columns(result))
        for policy in comparison.policies
        for seed, result in zip(comparison.seeds, episodes[policy], strict=True)
    }
    return pd.concat(parts, names=["policy", "seed"]).reset_index(["policy", "seed"])


def summary_table(comparison: Comparison, reference: str | None = None) -> pd.DataFrame:
    """One row per policy and metric; differences are from `reference`, or the best baseline."""
    import pandas as pd

    reference = reference or comparison.best_baseline
    rows = []
    for policy, summaries in comparison.summaries.items():
        for metric, summary in zip(comparison.metrics, summaries, strict=True):
            row: dict[str, Any] = {"policy": policy, "metric": metric.name, "unit": metric.unit}
            row |= {"mean": summary.mean, "iqm": summary.iqm, **_ci95("", summary.interval)}
            if reference is not None and policy != reference:
                difference = comparison.difference(policy, reference, metric)
                row |= {"difference": difference.mean, **_ci95("difference_", difference.interval)}
                row["difference_percent"] = difference.percent
                row |= _ci95("difference_percent_", difference.percent_interval)
            rows.append(row)
    return pd.DataFrame(rows)


def _ci95(prefix: str, interval: Interval) -> dict[str, Any]:
    return {f"{prefix}ci95_low": interval.low, f"{prefix}ci95_high": interval.high}


def write_everything(
    comparison: Comparison, episodes: Episodes, scratch: Path, folder: Path
) -> list[str]:
    """Write tables, charts and JSON to `scratch`; return their paths in `folder`."""
    from loadmaster.platform.evaluation.comparison_charts import draw_all

    episode_table(comparison).to_csv(scratch / "episodes.csv", index=False)
    summary_table(comparison).round(6).to_csv(scratch / "summary.csv", index=False)
    jobs = job_table(comparison, episodes)
    if jobs is not None:
        jobs.round(4).to_csv(scratch / "jobs.csv", index=False)
    draw_all(comparison, jobs, scratch)
    return write_json(partial(as_json, comparison), scratch, folder)


def write_json(
    record: Callable[[Sequence[str]], Mapping[str, Any]],
    scratch: Path,
    folder: Path,
    name: str = SUMMARY_JSON,
) -> list[str]:
    """Write the record of all files, itself among them, to `scratch`; return paths in `folder`."""
    names = sorted({name, *(file.name for file in scratch.iterdir())})
    files = [str(folder / each) for each in names]
    (scratch / name).write_text(json.dumps(record(files), indent=2) + "\n", "utf-8")
    return files


def as_json(comparison: Comparison, files: Sequence[str]) -> dict[str, Any]:
    """The comparison for scripts. Keys are added over time, never renamed."""
    setup = comparison.setup
    record: dict[str, Any] = {
        "environment": comparison.adapter.environment,
        "workload": setup.workload,
        "conditions": setup.conditions,
        "seeds": list(comparison.seeds),
        "few_seeds": comparison.few_seeds,
        "settings": setup.settings.model_dump(mode="json"),
        "metrics": {
            metric.name: {
                "unit": metric.unit,
                "better": metric.better,
                "relative": metric.relative,
            }
            for metric in comparison.metrics
        },
        "policies": {
            policy: {
                metric.name: summary_record(summary)
                for metric, summary in zip(comparison.metrics, summaries, strict=True)
            }
            for policy, summaries in comparison.summaries.items()
        },
        **({"oracles": list(comparison.oracles)} if comparison.oracles else {}),
        "best_baseline": comparison.best_baseline,
        "differences": {
            policy: {"metric": comparison.primary.name, **difference_record(difference)}
            for policy, difference in comparison.differences.items()
        },
    }
    if comparison.gaps:
        record["optimality_gap_percent"] = {
            policy: summary_record(gap) for policy, gap in comparison.gaps.items()
        }
    if comparison.closed:
        record["share_of_gap_closed"] = {
            policy: {
                "oracle": share.oracle,
                "mean": rounded(share.mean),
                "ci95": interval_ends(share.interval),
            }
            for policy, share in comparison.closed.items()
        }
    record["notes"] = list(comparison.notes)
    record["parameters"] = {
        policy: text for policy, text in setup.parameters.items() if policy in comparison.values
    }
    if comparison.learned:
        record["learned"] = learned_records(comparison.learned)
        record["learned_differences"] = _learned_differences(comparison)
    if comparison.explanations:
        record["explanations"] = {
            policy: [explanation.record for explanation in explanations]
            for policy, explanations in comparison.explanations.items()
        }
    record["files"] = list(files)
    return record


def _learned_differences(comparison: Comparison) -> dict[str, Any]:
    """Differences of each learned policy from the best baseline and from the first, per metric."""
    first = next(iter(comparison.learned))
    return {
        policy: {
            reference: {
                metric.name: difference_record(comparison.difference(policy, reference, metric))
                for metric in comparison.metrics
            }
            for reference in (comparison.best_baseline, first)
            if reference is not None and reference != policy
        }
        for policy in comparison.learned
    }


def difference_record(difference: Difference) -> dict[str, Any]:
    return {
        "mean": rounded(difference.mean),
        "ci95": interval_ends(difference.interval),
        "percent": rounded(difference.percent),
        "percent_ci95": interval_ends(difference.percent_interval),
        "excludes_zero": difference.interval.excludes_zero,
    }


def summary_record(summary: Summary) -> dict[str, Any]:
    return {
        "mean": rounded(summary.mean),
        "iqm": rounded(summary.iqm),
        "ci95": interval_ends(summary.interval),
    }
