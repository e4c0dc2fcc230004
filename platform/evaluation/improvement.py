"""Is the new policy better than the one that serves? On sequences neither has learnt from."""

from __future__ import annotations

import math
from collections.abc import Sequence

from loadmaster.envs.settings import Settings
from loadmaster.platform.evaluation.adapters import find_adapter
from loadmaster.platform.evaluation.comparison import Comparison, compare
from loadmaster.platform.evaluation.learned import choose_learned, with_learned
from loadmaster.platform.evaluation.run import choose_workers, run_episodes
from loadmaster.platform.evaluation.statistics import Interval
from loadmaster.platform.systems.bundle_ref import BundleRef
from loadmaster.serving.policies.comparison import ComparisonResult, PolicyScore


def compare_policies(
    candidate: BundleRef, serving: BundleRef, environment: Settings, seeds: Sequence[int]
) -> ComparisonResult:
    """Both on the same sequences of that environment, paired; for verdict.json.

    `better` asks for more than luck: the 95% interval of the difference must not include 0.
    """
    subject = find_adapter(serving.system.name)
    settings = subject.settings(environment.model_dump(mode="json"))
    wanted = [str(found.folder.absolute()) for found in (candidate, serving)]
    names, learned = choose_learned(subject, wanted, serving.system, settings)
    trial = with_learned(subject.prepare(settings), learned)
    episodes = run_episodes(trial, names, seeds, choose_workers(None), lambda: None)
    comparison = compare(subject, trial, seeds, episodes)
    ours, theirs = names
    difference = comparison.difference(ours, theirs, comparison.primary)
    lower = comparison.primary.better == "lower"
    interval = difference.interval
    return ComparisonResult(
        system=serving.system.name,
        metric=comparison.primary.name,
        unit=comparison.primary.unit,
        lower_is_better=lower,
        sequences=len(seeds),
        first_seed=seeds[0],
        environment=settings.model_dump(mode="json", exclude_defaults=True),
        candidate=_judged(comparison, ours, candidate),
        serving=_judged(comparison, theirs, serving),
        difference_percent=_number(difference.percent),
        ci95=_ends(difference.percent_interval),
        better=interval.high < 0 if lower else interval.low > 0,
    )


def _judged(comparison: Comparison, name: str, found: BundleRef) -> PolicyScore:
    summary = comparison.summaries[name][0]
    return PolicyScore(
        name=found.manifest.name,
        version=found.manifest.version,
        folder=str(found.folder.absolute()),
        mean=_number(summary.mean),
        ci95=_ends(summary.interval),
    )


def _ends(interval: Interval) -> tuple[float | None, float | None]:
    return _number(interval.low), _number(interval.high)


def _number(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None
