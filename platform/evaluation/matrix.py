"""Judge one policy against the best rule in every setting of a matrix; finished settings are kept.

The best of many rules on some sequences is partly the luckiest one there. With `select` in the file
it is chosen on other sequences than those that are judged.

The figures of a finished setting go to `settings/NAME.json` in the output folder, with a digest of
what they depend on. The same command reads them instead of running the episodes again.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from loadmaster.envs.compiled import cache_folder
from loadmaster.envs.errors import InputError
from loadmaster.envs.metrics import Metric
from loadmaster.envs.registry import System, environments
from loadmaster.models.files import atomic_text_file
from loadmaster.platform.evaluation import adapters
from loadmaster.platform.evaluation.adapters import EnvironmentAdapter, EvaluationSetup, Learned
from loadmaster.platform.evaluation.comparison import Comparison, compare, compare_values
from loadmaster.platform.evaluation.matrix_file import MatrixEntry, missing_traces, traces_folder
from loadmaster.platform.evaluation.statistics import Difference, Summary, summarise
from loadmaster.platform.systems.bundle_ref import BundleRef

KEPT_FOLDER = "settings"  # in the output folder
FORMAT = 2  # of kept files
Outcome = Literal["win", "tie", "loss"]
OUTCOMES: tuple[Outcome, ...] = ("win", "tie", "loss")


@dataclass(frozen=True)
class MatrixRow:
    """A setting that ran: the judged policy beside the best rule there."""

    entry: MatrixEntry
    comparison: Comparison
    policy: str
    rule: str  # the best baseline, oracles and the policy itself excluded
    hindsight: str  # likewise, on the judged sequences
    learned: Mapping[str, Any]  # record of the policy's bundle; empty for a rule
    from_file: bool  # read from the output folder

    @property
    def metric(self) -> Metric:
        return self.comparison.primary

    @cached_property
    def difference(self) -> Difference:
        """Of the policy from the best rule, in the primary metric."""
        return self.comparison.difference(self.policy, self.rule, self.metric)

    @cached_property
    def secondary(self) -> dict[Metric, Difference]:
        """Of the policy from the best rule, in the metrics that a matrix shows too."""
        shown = self.comparison.adapter.secondary
        return {
            metric: self.comparison.difference(self.policy, self.rule, metric)
            for metric in self.comparison.metrics[1:]
            if metric.name in shown
        }

    @property
    def oracle(self) -> str | None:
        """The best oracle beside the policy; None if none took part."""
        others = (name for name in self.comparison.policies if name != self.policy)
        return next((name for name in others if name in self.comparison.oracles), None)

    @cached_property
    def oracle_difference(self) -> Difference | None:
        """Of the best oracle from the best rule: how much there is to gain."""
        if self.oracle is None:
            return None
        return self.comparison.difference(self.oracle, self.rule, self.metric)

    @property
    def outcome(self) -> Outcome:
        """By the paired 95% interval of the difference; one seed, which has none, is a tie."""
        _, interval = self.difference.of(self.metric)
        ends = (self.metric.sign * interval.low, self.metric.sign * interval.high)
        return "win" if max(ends) < 0 else "loss" if min(ends) > 0 else "tie"

    def summary(self, policy: str) -> Summary:
        return self.comparison.summaries[policy][0]


@dataclass(frozen=True)
class MatrixSummary:
    """Outcomes over settings, and the mean of their differences with an interval over settings."""

    outcomes: dict[str, int]  # by Outcome
    difference: Summary
    secondary: dict[str, Summary]  # metric of most settings -> likewise
    best_rules: dict[str, int]  # rule -> in how many settings it is the best
    oracle: Summary | None  # difference of the best oracle; None if a setting has none


@dataclass(frozen=True)
class MatrixResult:
    """All settings of a matrix: those that ran, and why others did not."""

    name: str
    purpose: str
    adapter: EnvironmentAdapter
    rows: tuple[MatrixRow, ...]
    not_run: dict[str, str]  # setting -> reason

    @property
    def summary(self) -> MatrixSummary:
        return summarise_rows(self.rows)

    @property
    def hindsight(self) -> MatrixSummary | None:
        """Against the best rules of the judged sequences; None if they were chosen there anyway."""
        if not any(row.entry.selection for row in self.rows):
            return None
        return summarise_rows([replace(row, rule=row.hindsight) for row in self.rows])

    @property
    def groups(self) -> dict[str, MatrixSummary]:
        """Summaries of the groups, in the order of the file."""
        names = dict.fromkeys(row.entry.group for row in self.rows if row.entry.group)
        return {
            name: summarise_rows([row for row in self.rows if row.entry.group == name])
            for name in names
        }

    @property
    def policies(self) -> tuple[str, ...]:
        """Names of the judged policies: one, or the pretrained ones that fit the settings."""
        return tuple(dict.fromkeys(row.policy for row in self.rows))


def summarise_rows(rows: Sequence[MatrixRow]) -> MatrixSummary:
    counts = Counter(row.outcome for row in rows)
    oracles = [
        row.oracle_difference.of(row.metric)[0] for row in rows if row.oracle_difference is not None
    ]
    secondary: dict[str, list[float]] = {}
    for row in rows:
        for metric, difference in row.secondary.items():
            secondary.setdefault(metric.name, []).append(difference.of(metric)[0])
    return MatrixSummary(
        outcomes={outcome: counts[outcome] for outcome in OUTCOMES},
        difference=summarise(np.array([row.difference.of(row.metric)[0] for row in rows])),
        secondary={
            name: summarise(np.array(values))
            for name, values in secondary.items()
            if 2 * len(values) > len(rows)
        },
        best_rules=dict(Counter(row.rule for row in rows).most_common()),
        oracle=summarise(np.array(oracles)) if len(oracles) == len(rows) else None,
    )


class MatrixRunner:
    """Runs settings one after the other and keeps their figures in `folder`."""

    def __init__(
        self,
        adapter: EnvironmentAdapter,
        system: System | None,
        policy: str | None,
        against: str,
        folder: Path,
        threads: int,
    ) -> None:
        if policy is None and system is None:
            raise InputError(
                f"--matrix judges one policy; expected --policy, or a system instead of "
                f"{adapter.environment}"
            )
        self._adapter, self._system, self._against = adapter, system, against
        self._folder, self._threads = folder / KEPT_FOLDER, threads
        self._named = None
        if policy is not None:
            self._named = adapters.choose_learned(adapter, [policy], system, None)
        self._bundles: dict[Path, BundleRef] = {}
        adapters.choose_policies(adapter, [], against)  # refuses unknown names

    def run(
        self, entry: MatrixEntry, on_episode: Callable[[], None] = lambda: None
    ) -> MatrixRow | str:
        """Run a setting, or read it where its file is there; return a reason if traces are not."""
        names, learned = self._choose(entry)
        policies = adapters.choose_policies(self._adapter, names, self._against)
        digest = self._digest(entry, policies, learned)
        path = self._folder / f"{entry.name}.json"
        kept = _read_row(path, digest, self._adapter, entry)
        if kept is not None:
            return kept
        if reason := missing_traces(self._adapter.environment, entry.settings):
            return reason
        try:
            setup = self._adapter.prepare(entry.settings)
            own_rules = _rules(self._adapter, setup, names[0])
            rules = [policy for policy in policies if policy in own_rules]
            if not rules:
                raise InputError(f"no rule beside {names[0]}; expected one that is no oracle")
            with adapters.collect_warnings() as warnings:
                rule = self._select(setup, rules, entry)
                episodes = adapters.run_episodes(
                    setup, learned, policies, entry.seeds, self._threads, on_episode
                )
        except InputError as fault:
            raise InputError(f"{entry.where}: {entry.name}: {fault}") from None
        result = compare(self._adapter, setup, entry.seeds, episodes, warnings=warnings)
        record = _record(result, names[0], rule, digest, adapters.learned_records(learned))
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_text_file(path) as file:
            json.dump(record, file, indent=1)
            file.write("\n")
        return _row(record, self._adapter, entry, from_file=False)

    def _choose(self, entry: MatrixEntry) -> tuple[list[str], Learned]:
        """The judged policy; bundles are loaded once for all settings."""
        if self._named is not None:
            return self._named
        names, learned = adapters.choose_learned(self._adapter, [], self._system, entry.settings)
        return names, {
            name: self._bundles.setdefault(bundle.folder, bundle)
            for name, bundle in learned.items()
        }

    def _select(self, setup: EvaluationSetup, rules: Sequence[str], entry: MatrixEntry) -> str:
        """The best rule on the sequences for the selection; empty if there are none."""
        if not entry.selection:
            return ""
        episodes = adapters.run_episodes(setup, {}, rules, entry.selection, self._threads)
        return compare(self._adapter, setup, entry.selection, episodes).policies[0]

    def _digest(self, entry: MatrixEntry, policies: Sequence[str], learned: Learned) -> str:
        """SHA-256 of what the figures depend on: settings, seeds, policies, rules and code."""
        environment = self._adapter.environment
        depends_on = {
            "format": FORMAT,
            "code": cache_folder().name,
            "environment": environment,
            "settings": entry.settings.model_dump(mode="json"),
            "traces": traces_folder(environment, entry.settings),
            "calibration": _calibration_digest(environment, entry.settings),
            "seeds": list(entry.seeds),
            "selection": list(entry.selection),
            "policies": list(policies),
            "learned": {name: bundle.manifest.sha256 for name, bundle in learned.items()},
        }
        return hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()


def _calibration_digest(environment: str, settings: Any) -> str:
    """Of the file of tuned parameters that the rules read; empty where they have none."""
    spec = environments().get(environment)
    tuning = spec.tuning if spec is not None else None
    path = getattr(settings, "calibration", None) or (tuning.path if tuning else None)
    if path is None or not path.is_file():
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _record(
    result: Comparison, policy: str, rule: str, digest: str, learned: Mapping[str, Any]
) -> dict[str, Any]:
    """The figures of a setting for its file."""
    setup = result.setup
    return {
        "digest": digest,
        "policy": policy,
        "rule": rule,
        "workload": setup.workload,
        "conditions": setup.conditions,
        "notes": list(result.notes),
        "oracles": sorted(setup.oracles),
        "parameters": dict(setup.parameters),
        "learned": dict(learned),
        "metrics": [
            {
                "name": metric.name,
                "label": metric.label,
                "unit": metric.unit,
                "better": metric.better,
                "relative": metric.relative,
            }
            for metric in setup.metrics
        ],
        "values": {
            name: [[None if math.isnan(value) else value for value in row] for row in rows.tolist()]
            for name, rows in result.values.items()
        },
    }


def _read_row(
    path: Path, digest: str, adapter: EnvironmentAdapter, entry: MatrixEntry
) -> MatrixRow | None:
    """Read a setting's file; None if there is none, or other inputs or damage make it useless."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["digest"] != digest:
            return None
        return _row(record, adapter, entry, from_file=True)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _row(
    record: Mapping[str, Any], adapter: EnvironmentAdapter, entry: MatrixEntry, from_file: bool
) -> MatrixRow:
    setup = EvaluationSetup(
        settings=entry.settings,
        workload=record["workload"],
        conditions=record["conditions"],
        metrics=tuple(Metric(**one, of=lambda _: math.nan) for one in record["metrics"]),
        run=_no_episodes,
        notes=tuple(record["notes"]),
        oracles=frozenset(record["oracles"]),
        parameters=record["parameters"],
    )
    values = {
        name: np.array(rows, np.float64).reshape(len(setup.metrics), len(entry.seeds))
        for name, rows in record["values"].items()
    }
    comparison = compare_values(adapter, setup, entry.seeds, values)
    policy = record["policy"]
    rules = _rules(adapter, setup, policy)
    best = next(name for name in comparison.policies if name in rules)  # the best comes first
    learned = record["learned"].get(policy, {})
    return MatrixRow(entry, comparison, policy, record["rule"] or best, best, learned, from_file)


def _rules(adapter: EnvironmentAdapter, setup: EvaluationSetup, policy: str) -> set[str]:
    """Baselines that `policy` is judged against: no oracles, and not itself."""
    return set(adapter.baselines) - setup.oracles - {policy}


def _no_episodes(policy: str, seed: int) -> Any:
    raise AssertionError("the figures of this setting were read from a file")
