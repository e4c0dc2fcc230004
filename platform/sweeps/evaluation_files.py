"""Output of a sweep's evaluation: a table in the terminal, CSV and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from loadmaster.envs.metrics import Measure
from loadmaster.platform.evaluation.files import write_json
from loadmaster.platform.evaluation.report import bounds_text, decimals, figure_text
from loadmaster.platform.evaluation.statistics import Interval, interval_ends, rounded
from loadmaster.platform.sweeps.evaluation import SweepEvaluation
from loadmaster.platform.sweeps.records import short_names
from loadmaster.platform.sweeps.space import in_words

if TYPE_CHECKING:  # slow to import, and needed by the tables only
    import pandas as pd

EPISODES, SUMMARY = "episodes.csv", "summary.csv"


def title(evaluation: SweepEvaluation) -> str:
    first, last = evaluation.seeds[0], evaluation.seeds[-1]
    runs = sorted({len(group.trials) for group in evaluation.groups})
    trained = "one training" if runs == [1] else f"{'-'.join(map(str, runs))} trainings"
    return f"{evaluation.sweep.name}: {trained} each, on episodes of seeds {first} to {last}"


def result_table(evaluation: SweepEvaluation) -> Table:
    """A row a group: the primary measure with its interval, its difference from the first, others.

    Measures without a better direction are left out.
    """
    primary, *others = (each for each in evaluation.measures if each.better is not None)
    names = short_names([dimension.name for dimension in evaluation.dimensions])
    headings = [*names, "trials", f"{primary.title} [95%]", "from the first [95%]"]
    table = Table(*headings, *(other.title for other in others), box=None, pad_edge=False)
    for place, column in enumerate(table.columns):
        column.justify = "left" if place < len(names) else "right"
        column.no_wrap = place < len(headings)
    digits = {
        measure.name: _decimals(evaluation, measure) for measure in (primary, *others)
    }  # of a column
    for number, group in enumerate(evaluation.groups):
        own, form = evaluation.figure(group, primary), f",.{digits[primary.name]}f"
        table.add_row(
            *(in_words(value) for value in group.searched.values()),
            str(len(group.trials)),
            f"{own.mean:{form}}{bounds_text(own.interval, form)}",
            "" if number == 0 else _signed(own.difference, own.difference_interval, form),
            *(
                figure_text(evaluation.figure(group, other).mean, digits[other.name])
                for other in others
            ),
        )
    return table


def _decimals(evaluation: SweepEvaluation, measure: Measure) -> int:
    """One more than usual where values have no unit: variants of a policy differ by little."""
    means = [evaluation.figure(group, measure).mean for group in evaluation.groups]
    return decimals(measure, means) + (not measure.relative)


def _signed(value: float, interval: Interval, form: str) -> str:
    return f"{value:+{form}}{bounds_text(interval, '+' + form)}" if math.isfinite(value) else "-"


def summary_rows(evaluation: SweepEvaluation) -> pd.DataFrame:
    """One row per group and measure, with the searched settings as columns.

    Of a mixture also one per setting of the environment.
    """
    import pandas as pd

    rows = []
    for group, measure, setting in product(
        evaluation.groups, evaluation.measures, ("", *dict.fromkeys(evaluation.settings))
    ):
        if setting and group.values[measure.name].shape[1] == 1:
            continue  # a figure of the trial, not of its episodes
        found = evaluation.figure(group, measure, setting)
        ends, apart = found.interval, found.difference_interval
        rows.append({
            **{name: in_words(value) for name, value in group.searched.items()},
            **({"setting": setting or "all"} if evaluation.settings else {}),
            "trials": len(group.trials), "metric": measure.name,
            "unit": measure.unit, "mean": found.mean, "ci95_low": ends.low,
            "ci95_high": ends.high, "difference": found.difference,
            "difference_ci95_low": apart.low, "difference_ci95_high": apart.high,
        })  # fmt: skip
    return pd.DataFrame(rows)


def episode_rows(evaluation: SweepEvaluation) -> pd.DataFrame:
    """One row per trial and episode, with the searched settings as columns."""
    import pandas as pd

    rows = []
    for group in evaluation.groups:
        settings = {name: in_words(value) for name, value in group.searched.items()}
        for run, (trial, training_seed) in enumerate(zip(group.trials, group.seeds, strict=True)):
            for place, seed in enumerate(evaluation.seeds):
                figures = {
                    name: table[run, place if table.shape[1] > 1 else 0]
                    for name, table in group.values.items()
                }
                own = {"trial": trial, "training_seed": training_seed, "seed": seed}
                if evaluation.settings:
                    own["setting"] = evaluation.setting(seed)
                rows.append({**own, **settings, **figures})
    return pd.DataFrame(rows)


def write_everything(evaluation: SweepEvaluation, scratch: Path, folder: Path) -> list[str]:
    """Write tables, charts and JSON to `scratch`; return their paths in `folder`."""
    from loadmaster.platform.sweeps.evaluation_charts import draw_all

    summary_rows(evaluation).round(6).to_csv(scratch / SUMMARY, index=False)
    episode_rows(evaluation).round(6).to_csv(scratch / EPISODES, index=False)
    draw_all(evaluation, title(evaluation), scratch)
    return write_json(partial(as_json, evaluation), scratch, folder)


def as_json(evaluation: SweepEvaluation, files: Sequence[str]) -> dict[str, Any]:
    """The evaluation for scripts."""
    return {
        "sweep": evaluation.sweep.name,
        "system": evaluation.sweep.system.name,
        "iterations": evaluation.sweep.iterations,
        "seeds": list(evaluation.seeds),
        "metrics": {
            each.name: {"unit": each.unit, "better": each.better, "relative": each.relative}
            for each in evaluation.measures
        },
        "groups": [
            {
                "searched": dict(group.searched),
                "trials": list(group.trials),
                "training_seeds": list(group.seeds),
                **{
                    measure.name: _record(evaluation, number, measure)
                    for measure in evaluation.measures
                },
            }
            for number, group in enumerate(evaluation.groups)
        ],
        "files": list(files),
    }


def _record(evaluation: SweepEvaluation, number: int, measure: Measure) -> dict[str, Any]:
    found = evaluation.figure(evaluation.groups[number], measure)
    return {
        "mean": rounded(found.mean),
        "ci95": interval_ends(found.interval),
        "difference": rounded(found.difference),
        "difference_ci95": interval_ends(found.difference_interval),
    }
