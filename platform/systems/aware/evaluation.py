"""Evaluation in pod scaling: the environment's adapter."""

import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from statistics import median
from threading import Lock
from typing import Any

from loadmaster.envs.errors import counted
from loadmaster.envs.pod_scaling.baselines import BASELINES
from loadmaster.envs.pod_scaling.calibration import tuned_baseline, tuned_for, untuned_baselines
from loadmaster.envs.pod_scaling.clairvoyant import POLICY as CLAIRVOYANT
from loadmaster.envs.pod_scaling.clairvoyant import run_clairvoyant
from loadmaster.envs.pod_scaling.describe import changed_settings, describe_episode
from loadmaster.envs.pod_scaling.episode import EpisodeResult, Setup, build_setup
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.pod_scaling.metrics import EPISODE_METRICS
from loadmaster.envs.pod_scaling.rollout import run_episode
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.envs.pod_scaling.workloads import WORKLOADS
from loadmaster.models.aware.adaptation import FIRST_SEED, Adaptation, adapt_to
from loadmaster.models.aware.choice import Remembered, nothing_known
from loadmaster.models.aware.explain import explained
from loadmaster.models.aware.policy import AwarePolicy
from loadmaster.models.aware.rule import carry_out
from loadmaster.models.aware.rule_policy import RULE, run_rule
from loadmaster.models.policy import ExplainedDecision
from loadmaster.platform.evaluation import adapters
from loadmaster.platform.systems.aware.rollout import application_of
from loadmaster.platform.systems.policies import spread


class LearnedAware(AwarePolicy):
    """The policy in episodes of applications that it adapted to before, on seeds of its own."""

    adaptation_episodes = 5  # episodes of each application before those that count

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._lock = Lock()  # of the two tables, by environment settings and application
        self._locks: dict[Any, Any] = {}
        self._known: dict[Any, Adaptation] = {}

    @property
    def preparation(self) -> str:
        """What happens before an evaluation, for its notes."""
        if not self.adaptation_episodes:
            return "every episode is the first of its application"
        return (
            f"adapted to each application in {counted(self.adaptation_episodes, 'episode')} before"
        )

    def run(
        self,
        settings: PodScalingSettings,
        seed: int,
        workload: Setup,
        known: Remembered | None = None,
        *,
        record: bool = False,
    ) -> EpisodeResult:
        return super().run(
            settings, seed, workload, known or self.known_of(settings, seed, workload)
        )

    def known_of(self, settings: PodScalingSettings, seed: int, workload: Setup) -> Remembered:
        """What is known of the application of the episode of `seed`; adapted to once, then kept."""
        application = workload.applications[application_of(len(workload.applications), seed)]
        key = (settings.model_copy(update={"application": ""}), application.name)
        with self._lock:
            lock = self._locks.setdefault(key, Lock())
        with lock:
            if key not in self._known:
                alone = workload._replace(applications=(application,), shifted=())
                calm = settings.model_copy(update={"shift": ()})
                seeds = range(FIRST_SEED, FIRST_SEED + self.adaptation_episodes)
                self._known[key], _ = adapt_to(self, calm, alone, seeds)
            return self._known[key].copy()

    def explain(
        self, settings: PodScalingSettings, seed: int, workload: Setup, count: int
    ) -> tuple[ExplainedDecision, ...]:
        """Decisions that change the plan; where there are fewer, also others."""
        runner, made = EpisodeRunner(settings, workload, seed), []
        state = runner.episode.state
        for _, decision in self.steps(runner, self.known_of(settings, seed, workload)):
            before, minute = state.plan.copy(), runner.step
            carry_out(workload.constants, state, decision.plan)
            made.append((decision, before, self.settings.rule, minute))
        acting = [
            number for number, (decision, before, *_) in enumerate(made)
            if (decision.plan != before).any()
        ]  # fmt: skip
        chosen = spread(acting if len(acting) >= count else range(len(made)), count)
        return tuple(explained(*made[number]) for number in sorted(chosen))

    def decision_s(
        self, settings: PodScalingSettings, seed: int, workload: Setup, count: int
    ) -> float:
        """Median processor time of the first decisions."""
        runner, spent = EpisodeRunner(settings, workload, seed), []
        known, began = nothing_known(self.settings.context), time.process_time()
        for _, decision in islice(self.steps(runner, known), count):
            spent.append(time.process_time() - began)
            carry_out(workload.constants, runner.episode.state, decision.plan)
            began = time.process_time()
        return median(spent)

    def is_compiled(self) -> bool:
        return adapters.loop_is_compiled("pod_scaling")


load_policy = LearnedAware.from_bundle


def prepare(settings: PodScalingSettings) -> adapters.EvaluationSetup:
    setup = build_setup(settings)
    return adapters.EvaluationSetup(
        settings=settings,
        workload=settings.workload,
        conditions=describe_episode(settings, len(setup.applications)),
        metrics=EPISODE_METRICS,
        run=lambda policy, seed: run(policy, settings, setup, seed),
        notes=tuple(notes(settings, setup)),
        parameters=tuned_parameters(settings, tuned_for(settings, setup)),
        oracles=frozenset({CLAIRVOYANT}),
        bank=setup,
    )


def run(policy: str, settings: PodScalingSettings, setup: Setup, seed: int) -> EpisodeResult:
    """Run a tuned rule, the one that AWARE starts from, or the bound."""
    if policy == RULE:
        return run_rule(settings, setup, seed)
    if policy == CLAIRVOYANT:
        return run_clairvoyant(settings, setup, seed)
    return run_episode(policy, settings, seed, setup)


def notes(settings: PodScalingSettings, setup: Setup) -> Iterator[str]:
    """On the load, and on rules without parameters for these applications."""
    if setup.load.description:
        yield setup.load.description
    if untuned := untuned_baselines(settings, setup):
        command = f"loadmaster calibrate pod_scaling --set application={settings.application}"
        yield f"not tuned for {settings.application}: {', '.join(untuned)}; see `{command}`"


def tuned_parameters(settings: PodScalingSettings, application: str) -> dict[str, str]:
    """The parameters of tuned rules in words; in a set, one application may have its own."""
    words = {
        name: adapters.parameters_in_words(tuned_baseline(name, settings, application), published)
        for name, published in BASELINES.items()
    }
    return {name: text for name, text in words.items() if text}


def folder_name(settings: PodScalingSettings) -> str:
    own = [f"{name}-{value}" for name, value in changed_settings(settings) if name != "application"]
    return adapters.folder_name_of(["pod_scaling", settings.application, settings.workload, *own])


EVALUATION = adapters.EnvironmentAdapter(
    environment="pod_scaling",
    baselines=tuple(BASELINES),
    settings=partial(adapters.read_settings, PodScalingSettings, WORKLOADS),
    folder_name=folder_name,
    prepare=prepare,
    references=(CLAIRVOYANT, RULE),
    is_compiled=partial(adapters.loop_is_compiled, "pod_scaling"),
)
