"""Evaluation in DAG scheduling: the environment's adapter, and Decima's bundles in episodes."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import cache_folder
from loadmaster.envs.dag_scheduling import observation as obs_cols
from loadmaster.envs.dag_scheduling import state as state_cols
from loadmaster.envs.dag_scheduling.actions import apply_action
from loadmaster.envs.dag_scheduling.baselines import BASELINES
from loadmaster.envs.dag_scheduling.calibration import tuned_baseline
from loadmaster.envs.dag_scheduling.describe import changed_settings, describe_episode
from loadmaster.envs.dag_scheduling.episode import OPTIMAL, run_episode
from loadmaster.envs.dag_scheduling.jobs import Workload
from loadmaster.envs.dag_scheduling.metrics import episode_metrics, job_columns
from loadmaster.envs.dag_scheduling.observation import Observation, observe
from loadmaster.envs.dag_scheduling.rollout import buffers_for, initial_state
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.simulator import advance
from loadmaster.envs.dag_scheduling.state import SimState, with_more_slots
from loadmaster.envs.dag_scheduling.workloads import WORKLOADS, load_workload
from loadmaster.models.decima.explain import Decision
from loadmaster.models.decima.policy import DecimaPolicy
from loadmaster.models.policy import ExplainedDecision, Explanation
from loadmaster.platform.evaluation import adapters
from loadmaster.platform.systems.decima import rollout
from loadmaster.platform.systems.policies import spread


def prepare(settings: DagSchedulingSettings) -> adapters.EvaluationSetup:
    workload = load_workload(settings)
    return adapters.EvaluationSetup(
        settings=settings,
        workload=settings.workload,
        conditions=describe_episode(settings),
        metrics=episode_metrics(settings, workload),
        run=lambda policy, seed: run_episode(policy, settings, seed, workload),
        job_columns=lambda result: job_columns(result, workload, settings.total_executors),
        job_labels=adapters.JobLabels("job's work, executor-seconds", "JCT / least possible"),
        notes=(workload.description,) if workload.description else (),
        parameters=tuned_parameters(settings, workload),
        bank=workload,
    )


def tuned_parameters(settings: DagSchedulingSettings, workload: Workload) -> dict[str, str]:
    """Describe the parameters of the baselines that `loadmaster calibrate` tuned."""
    tuned = {
        name: adapters.parameters_in_words(tuned_baseline(name, settings, workload), baseline)
        for name, baseline in BASELINES.items()
    }
    return {name: words for name, words in tuned.items() if words}


def folder_name(settings: DagSchedulingSettings) -> str:
    parts = ["dag_scheduling", settings.workload, settings.arrivals]
    parts += [f"{name}-{value}" for name, value in changed_settings(settings) if name != "arrivals"]
    return adapters.folder_name_of(parts)


class Step(NamedTuple):
    """A decision of an episode, before it is carried out; valid until the next one."""

    state: SimState
    rows: NDArray[np.int64]  # the stage behind each row of the observation
    view: Observation
    decision: Decision
    explanation: Explanation


class Stage(NamedTuple):
    """A stage by its numbers in tables of an episode, which count from 0."""

    job: int
    template: str
    stage: int

    def __str__(self) -> str:
        """Counted from 1, as on the replay page."""
        return f"job {self.job + 1} ({self.template}), stage {self.stage + 1}"


class LearnedDecima(DecimaPolicy):
    """The policy with whole episodes and their explanations."""

    run = rollout.run_episode

    def explain(
        self, settings: DagSchedulingSettings, seed: int, workload: Workload, count: int
    ) -> tuple[ExplainedDecision, ...]:
        steps = enumerate(self.iterate(settings, seed, workload))
        with_choice = [
            explained(step, number, workload)
            for number, step in steps
            if step.decision.schedulable > 1
        ]
        return tuple(with_choice[i] for i in sorted(spread(range(len(with_choice)), count)))

    def is_compiled(self) -> bool:
        return any(cache_folder().glob("decima_*/rollout.run_network-*.nbi"))

    def iterate(
        self, settings: DagSchedulingSettings, seed: int, workload: Workload
    ) -> Iterator[Step]:
        """The decisions of the episode that `run` runs."""
        state, bank = initial_state(settings, workload, seed), workload.bank
        view, rows = buffers_for(state, bank)

        def stage_name(row: int) -> str:
            return str(_stage(state, rows, workload, row))

        while (status := advance(state, bank)) in (state_cols.DECIDE, state_cols.GROW_JOBS):
            if status == state_cols.GROW_JOBS:
                state = with_more_slots(state)
                view, rows = buffers_for(state, bank)
                continue
            observe(state, bank, view, rows)
            decision, explanation = self.decide(view, stage_name)
            yield Step(state, rows, view, decision, explanation)
            apply_action(state, bank, view, rows, decision.row, decision.limit)


load_policy = LearnedDecima.from_bundle


def explained(step: Step, number: int, workload: Workload) -> ExplainedDecision:
    """The decision of that number in its episode, from 0."""
    decision, cluster = step.decision, step.view.cluster
    time_s = float(step.state.clock[state_cols.NOW]) / 1000
    stages = [_stage(step.state, step.rows, workload, each.row) for each in decision.stages]
    record: dict[str, Any] = {
        "decision": number,
        "time_s": time_s,
        "free_executors": int(cluster[obs_cols.FREE_EXECUTORS]),
        "total_executors": int(cluster[obs_cols.TOTAL_EXECUTORS]),
        "jobs": int(cluster[obs_cols.JOBS]),
        "schedulable": decision.schedulable,
        "stages": [
            {
                **stage._asdict(),
                "tasks_left": each.tasks_left,
                "mean_s": round(each.mean_s, 4),
                "probability": round(each.probability, 6),
            }
            for stage, each in zip(stages, decision.stages, strict=True)
        ],
        "limits": [
            {"limit": each.limit, "probability": round(each.probability, 6)}
            for each in decision.limits
        ],
        "chosen": None,  # the free executors idle
    }
    if stages:
        granted = {"limit": decision.limit, "executors": decision.executors}
        record["chosen"] = stages[0]._asdict() | granted
    return ExplainedDecision(time_s, step.explanation, record)


def _stage(state: SimState, rows: NDArray[np.int64], workload: Workload, row: int) -> Stage:
    slot, place = divmod(int(rows[row]), int(state.setup[state_cols.STRIDE]))
    name = workload.job_names[state.jobs[slot, state_cols.TEMPLATE]]
    template = name.removeprefix(f"{workload.name}-")
    return Stage(int(state.jobs[slot, state_cols.NUMBER]), template, place)


EVALUATION = adapters.EnvironmentAdapter(
    environment="dag_scheduling",
    baselines=tuple(BASELINES),
    settings=partial(adapters.read_settings, DagSchedulingSettings, WORKLOADS),
    folder_name=folder_name,
    prepare=prepare,
    references=(OPTIMAL,),
    choice="stage",
    secondary=("jct", "makespan"),
    is_compiled=partial(adapters.loop_is_compiled, "dag_scheduling"),
)
