"""Steps of `loadmaster fit`: workload, tuned rules, fine-tuned policy, comparison on later jobs.

FOLDER/request.json    the request; the same request continues where it was stopped
       workload/train/, workload/test/   jobs in the format of the workload `jobs`
       calibration.json    parameters of the rules, for --set calibration=
       run/            a training run
       results/        tables and charts of the comparison
       bundle/         the fine-tuned policy, only if it is ahead of the best rule
       report.md, fit.json    the result; fit.json is written last
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from loadmaster.envs.calibration import Tuning, merge_entries
from loadmaster.envs.settings import Settings
from loadmaster.models.files import atomic_folder, atomic_text_file
from loadmaster.models.manifest import mixture_size
from loadmaster.platform.evaluation import adapters, calibration, comparison, files
from loadmaster.platform.fitting.trace import UserTrace
from loadmaster.platform.systems.bundle_ref import BundleRef, find_policy
from loadmaster.platform.training.config import BaseLearning, Learning, Recipe
from loadmaster.platform.training.request_folder import RequestFolder

CALIBRATION_SEEDS = 8
ITERATIONS = 1_000_000  # the time limit ends the training
VALIDATION = {"every": 5, "sequences": 16}
RATE_FACTOR, RATE_ITERATIONS = 4, 60  # of the learning rate, which falls to its usual end
SEARCH_SEQUENCES = 12  # per generation of evolution
PARTS = ("train", "test")


class FitFolder(RequestFolder):
    """The folder of one fit."""

    kind, command = "fit", "loadmaster fit"
    RESULT = "fit.json"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.calibration, self.results = path / "calibration.json", path / "results"
        self.report, self.bundle = path / "report.md", path / "bundle"

    @property
    def train(self) -> Path:
        return self.path / "workload" / PARTS[0]

    @property
    def test(self) -> Path:
        return self.path / "workload" / PARTS[1]

    def write_workload(self, trace: UserTrace) -> None:
        """Write both parts of the trace, unless they are there."""
        folder = self.path / "workload"
        if folder.exists():
            return
        with atomic_folder(folder) as scratch:
            for name, part in zip(PARTS, trace.split, strict=True):
                (scratch / name).mkdir()
                with (scratch / name / trace.file).open("w", encoding="utf-8") as file:
                    file.writelines(trace.lines(part))

    def close(self, record: Mapping[str, Any]) -> None:
        """Write the result and remove checkpoints and replay, most of the folder's size."""
        self.write_json(self.RESULT, record)
        self.remove_checkpoints()


def digest(trace: UserTrace) -> str:
    """SHA-256 of the jobs, as they are written."""
    found = hashlib.sha256()
    for part in trace.split:
        for line in trace.lines(part):
            found.update(line.encode())
    return found.hexdigest()


def tune_rules(
    tuning: Tuning | None, settings: Settings, path: Path, workers: int
) -> list[dict[str, Any]]:
    """Tune every rule with parameters that is not in the file yet; return the file's entries."""
    known: list[dict[str, Any]] = json.loads(path.read_text("utf-8")) if path.exists() else []
    if tuning is None:
        return known
    done = {entry["baseline"] for entry in known}
    problem = tuning.prepare(settings)
    for name in tuning.tunable:
        if name not in done:
            best, _ = calibration.calibrate(name, problem, CALIBRATION_SEEDS, workers)
            text = merge_entries(path, [best])
            with atomic_text_file(path) as file:
                file.write(text)
            known.append(asdict(best))
    return known


def best_rule(
    adapter: adapters.EnvironmentAdapter, settings: Any, workers: int
) -> tuple[str, float]:
    """The best rule on sequences of the training part, and its mean score."""
    setup, seeds = adapter.prepare(settings), range(CALIBRATION_SEEDS)
    with adapters.collect_warnings():
        episodes = adapters.run_episodes(setup, {}, adapter.baselines, seeds, workers)
    found = comparison.compare(adapter, setup, seeds, episodes)
    assert found.best_baseline is not None
    return found.best_baseline, found.summaries[found.best_baseline][0].mean


def training_values(
    recipe: Recipe,
    start: BundleRef,
    environment: Mapping[str, Any],
    minutes: float,
    workers: int,
    reference: float,
) -> dict[str, Any]:
    """The system's own settings of training, from the shipped policy; `reference` as below.

    A policy of a mixture keeps what all its settings had in common, and goes on by evolution if it
    was made so: from a rule, gradients of few minutes gain nothing.
    """
    rollouts: dict[str, Any] = {"workers": workers}
    common, search = _of_mixture(start)
    if search:
        rollouts["sequences"] = SEARCH_SEQUENCES
    learning = {
        "warm_start": str(start.folder.absolute()),
        "iterations": ITERATIONS,
        "minutes": minutes,
        **recipe.learning.finetuning,
        **_adjusted(recipe.config_class().training, start, reference),
        **search,
    }
    return {
        "environment": {**common, **environment},
        "network": start.manifest.network,
        "rollouts": rollouts,
        "training": learning,
        "validation": VALIDATION,
    }


def _of_mixture(start: BundleRef) -> tuple[dict[str, Any], dict[str, Any]]:
    """Common settings of the environment, and those of a search by evolution; empty if neither."""
    trained = start.manifest.trained
    if not mixture_size(start.manifest):
        return {}, {}
    learning = trained["config"].get("training") or {}
    common = dict(trained.get("environment") or {})
    if learning.get("method") != "evolution":
        return common, {}
    return common, {"method": "evolution", "evolution": learning["evolution"]}


def _adjusted(default: BaseLearning, start: BundleRef, reference: float) -> dict[str, Any]:
    """Settings of on-policy learning for few minutes on jobs of any length.

    The learning rate starts a few times above its usual end: of what it spoils, the validation
    keeps nothing. Advantages are scaled by sequence, since jobs of a trace are unequal. `reference`
    is the best rule's score here; its ratio to the best rule's score where the policy was trained
    scales the time over which decisions are credited with what follows.
    """
    if not isinstance(default, Learning):
        return {}
    last = default.learning_rate.last
    found: dict[str, Any] = {
        "scale": "sequence",
        "learning_rate": {"first": RATE_FACTOR * last, "last": last, "iterations": RATE_ITERATIONS},
    }
    there = start.manifest.results.get("best_baseline_validation")
    usual = default.credit_horizon_s
    if usual is not None and isinstance(there, int | float) and there > 0 and reference > 0:
        found["credit_horizon_s"] = float(f"{usual * reference / there:.3g}")
    return found


def compare_on_test(
    adapter: adapters.EnvironmentAdapter,
    settings: Any,
    described: Any,
    learned: adapters.Learned,
    seeds: Sequence[int],
    workers: int,
    folder: Path,
) -> tuple[comparison.Comparison, dict[str, Any]]:
    """Run learned policies and all rules; write tables and charts.

    `described` are the settings as titles show them. Returns the comparison and its JSON record.
    """
    setup = replace(adapter.prepare(settings), conditions=adapter.prepare(described).conditions)
    policies = (*learned, *adapter.baselines)
    with files.output_folder(folder) as scratch:
        with adapters.collect_warnings() as warnings:
            episodes = adapters.run_episodes(setup, learned, policies, seeds, workers)
        result = comparison.compare(
            adapter, setup, seeds, episodes, learned=learned, warnings=warnings
        )
        written = files.write_everything(result, episodes, scratch, folder)
    return result, files.as_json(result, written)


def both_policies(start: BundleRef, run: Path) -> tuple[adapters.Learned, str, str]:
    """The shipped policy and the run's best one, by distinct names."""
    shipped = start.manifest.name
    fitted = f"{shipped}-fitted"
    return {shipped: start, fitted: find_policy(str((run / "best").absolute()))}, shipped, fitted
