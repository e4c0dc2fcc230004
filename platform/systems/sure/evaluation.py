"""Evaluation in stream scaling: the environment's adapter, and SURE's bundles in episodes."""

import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from statistics import median

from loadmaster.envs.stream_scaling.baselines import BASELINES
from loadmaster.envs.stream_scaling.calibration import tuned_baseline, untuned_baselines
from loadmaster.envs.stream_scaling.clairvoyant import POLICY as CLAIRVOYANT
from loadmaster.envs.stream_scaling.clairvoyant import run_clairvoyant
from loadmaster.envs.stream_scaling.describe import changed_settings, describe_episode
from loadmaster.envs.stream_scaling.episode import EpisodeResult, Setup, build_setup
from loadmaster.envs.stream_scaling.exact_search import run_optimal
from loadmaster.envs.stream_scaling.metrics import episode_metrics
from loadmaster.envs.stream_scaling.rollout import run_episode
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.envs.stream_scaling.workloads import WORKLOADS
from loadmaster.models.policy import ExplainedDecision
from loadmaster.models.sure.explain import explained
from loadmaster.models.sure.policy import SurePolicy
from loadmaster.models.sure.rule_policy import FORESIGHT, RULE, run_rule
from loadmaster.platform.evaluation import adapters
from loadmaster.platform.evaluation.comparison import OPTIMUM
from loadmaster.platform.systems.policies import spread


class LearnedSure(SurePolicy):
    """The policy with explanations of episodes, and the time of its decisions."""

    def explain(
        self, settings: StreamScalingSettings, seed: int, workload: Setup, count: int
    ) -> tuple[ExplainedDecision, ...]:
        """Decisions that restart the job; where there are fewer, also others."""
        runner, names, made = self.start_episode(settings, seed, workload), workload.job.names, []
        for _, decision in self.steps(runner):
            before, minute = runner.parallelism.copy(), runner.minute
            runner.decide(decision.action)
            made.append((decision, names, before, runner.parallelism.copy(), minute))
        acting = [number for number, (decision, *_) in enumerate(made) if decision.act]
        chosen = spread(acting if len(acting) >= count else range(len(made)), count)
        return tuple(explained(*made[number]) for number in sorted(chosen))

    def decision_s(
        self, settings: StreamScalingSettings, seed: int, workload: Setup, count: int
    ) -> float:
        """Median processor time of the first decisions, from the new snapshots to the changes."""
        runner, spent = self.start_episode(settings, seed, workload), []
        began = time.process_time()
        for step in islice(self.steps(runner), count):
            spent.append(time.process_time() - began)
            runner.decide(step.decision.action)
            began = time.process_time()
        return median(spent)

    def is_compiled(self) -> bool:
        return adapters.loop_is_compiled("stream_scaling")


load_policy = LearnedSure.from_bundle


def prepare(settings: StreamScalingSettings) -> adapters.EvaluationSetup:
    setup = build_setup(settings)
    return adapters.EvaluationSetup(
        settings=settings,
        workload=settings.workload,
        conditions=describe_episode(settings, setup.job),
        metrics=episode_metrics(settings),
        run=lambda policy, seed: run(policy, settings, setup, seed),
        notes=tuple(notes(settings, setup)),
        parameters=tuned_parameters(settings, setup),
        oracles=frozenset({CLAIRVOYANT, FORESIGHT}),
        bank=setup,
    )


def run(
    policy: str,
    settings: StreamScalingSettings,
    setup: Setup,
    seed: int,
    *,
    record: bool = False,
) -> EpisodeResult:
    """Run a rule or an oracle; the clairvoyant one starts from every tuned rule."""
    if policy in (RULE, FORESIGHT):
        return run_rule(settings, setup, seed, foresight=policy == FORESIGHT, record=record)
    if policy == OPTIMUM:
        return run_optimal(settings, setup, seed, record=record)
    if policy == CLAIRVOYANT:
        rivals = [tuned_baseline(name, settings, setup) for name in BASELINES]
        return run_clairvoyant(settings, setup, seed, rivals, record=record)
    return run_episode(policy, settings, seed, setup, record=record)


def notes(settings: StreamScalingSettings, setup: Setup) -> Iterator[str]:
    """On the load, and on rules without parameters for this job."""
    if setup.load.description:
        yield setup.load.description
    if untuned := untuned_baselines(settings, setup):
        command = f"loadmaster calibrate stream_scaling --set job={settings.job}"
        yield f"not tuned for {setup.job.name}: {', '.join(untuned)}; see `{command}`"


def tuned_parameters(settings: StreamScalingSettings, setup: Setup) -> dict[str, str]:
    """The parameters of tuned rules in words."""
    words = {}
    for name, published in BASELINES.items():
        rule = tuned_baseline(name, settings, setup)
        size = f"{sum(rule.plan)} instances" if rule.plan else ""
        words[name] = size or adapters.parameters_in_words(rule, published)
    return {name: text for name, text in words.items() if text}


def folder_name(settings: StreamScalingSettings) -> str:
    own = [f"{name}-{value}" for name, value in changed_settings(settings) if name != "job"]
    return adapters.folder_name_of(["stream_scaling", settings.job, settings.workload, *own])


EVALUATION = adapters.EnvironmentAdapter(
    environment="stream_scaling",
    baselines=tuple(BASELINES),
    settings=partial(adapters.read_settings, StreamScalingSettings, WORKLOADS),
    folder_name=folder_name,
    prepare=prepare,
    references=(OPTIMUM, CLAIRVOYANT, FORESIGHT, RULE),
    choice="task",
    is_compiled=partial(adapters.loop_is_compiled, "stream_scaling"),
)
