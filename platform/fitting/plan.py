"""A fit before its steps run: trace, system, episodes and the policy to start from, all checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadmaster.envs.errors import InputError, counted
from loadmaster.envs.registry import EnvironmentSpec, System, environments
from loadmaster.models.storage import check_local
from loadmaster.platform.evaluation.adapters import EnvironmentAdapter, find_adapter
from loadmaster.platform.fitting.environment import Episodes, choose_episodes, choose_system
from loadmaster.platform.fitting.steps import FitFolder, digest
from loadmaster.platform.fitting.trace import UserTrace, check_size
from loadmaster.platform.systems.bundle_ref import BundleRef, best_pretrained, find_policy


@dataclass(frozen=True)
class Plan:
    """What is fitted to what, in which folder."""

    trace: UserTrace
    system: System
    episodes: Episodes
    start: BundleRef  # the policy to fine-tune
    folder: FitFolder
    minutes: float
    seeds: int

    @property
    def adapter(self) -> EnvironmentAdapter:
        return find_adapter(self.system.name)

    @property
    def environment(self) -> EnvironmentSpec:
        return environments()[self.system.environment]

    @property
    def calibration(self) -> dict[str, str]:
        """The setting that names the file of tuned rules, once there is one."""
        has_setting = "calibration" in self.environment.settings.model_fields
        path = self.folder.calibration
        return {"calibration": str(path.absolute())} if has_setting and path.exists() else {}

    @property
    def tested(self) -> dict[str, Any]:
        """Settings of episodes with the later jobs and the tuned rules."""
        return self.episodes.on(self.folder.test, **self.calibration)

    @property
    def trained(self) -> dict[str, Any]:
        """Settings of the sequences that the policy is trained on."""
        return self.episodes.to_train(self.folder.train, **self.calibration)

    @property
    def facts(self) -> dict[str, str]:
        """What was fitted, in words."""
        train, test = self.trace.split
        later = counted(test.stop - test.start, "later job")
        return {
            "Trace": f"{self.trace.description} (format {self.trace.format})",
            "Split": f"{counted(train.stop, 'job')} to tune and train on, {later} to test on",
            "Arrivals": self.episodes.rate,
            "Policy": f"{self.start.manifest.name}, fine-tuned for {self.minutes:g} minutes",
        }


def make_plan(
    trace: UserTrace,
    folder: Path,
    *,
    system: str | None,
    start: str | None,
    given: Mapping[str, Any],
    executors: int | None,
    minutes: float,
    seeds: int,
) -> Plan:
    """Check all that is given, open the folder and write the workload to it.

    The folder of an earlier, equal request is continued; that of another one is refused.
    """
    check_local(folder, "--output")
    if minutes <= 0:
        raise InputError(f"--minutes is {minutes:g}; expected more than 0")
    chosen = choose_system(system, trace)
    chosen.load("training")  # a missing package is named before any work
    episodes = choose_episodes(trace, given, executors)
    fit_folder = FitFolder(folder)
    settings = find_adapter(chosen.name).settings(episodes.on(fit_folder.train))
    if trace.held_by is not None:
        trace = trace.held_by(settings)
        check_size(trace)
    policy = None if start is None else find_policy(start)
    if policy is not None and policy.system.name != chosen.name:
        raise InputError(
            f"--from {start!r} is a policy of {policy.system.name!r}; expected {chosen.name!r}"
        )
    fit_folder.open({
        "trace": digest(trace),
        "system": chosen.name,
        "from": None if policy is None else policy.manifest.sha256,
        "settings": episodes.values,
        "minutes": minutes,
        "seeds": seeds,
    })  # fmt: skip
    fit_folder.write_workload(trace)
    nearest = policy or best_pretrained(chosen, settings)
    return Plan(trace, chosen, episodes, nearest, fit_folder, minutes, seeds)
