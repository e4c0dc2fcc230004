"""DAS as a policy: single events of a service, and whole episodes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling.actions import apply_action
from loadmaster.envs.gpu_scheduling.decision_state import GUIDE, PHASE, SHOWN
from loadmaster.envs.gpu_scheduling.episode import EpisodeResult
from loadmaster.envs.gpu_scheduling.episode_runner import EpisodeRunner
from loadmaster.envs.gpu_scheduling.jobs import Workload
from loadmaster.envs.gpu_scheduling.observation import (
    Observation,
    blank_observation,
    observe_if_decision,
)
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.models.bundle import Bundle, load_bundle
from loadmaster.models.das import compiled_loop as loop
from loadmaster.models.das.compiled import Workspace, is_supported, weights_of, workspace_for
from loadmaster.models.das.compiled_loop import EVENT, NO_REWARD, Scores, empty_scores
from loadmaster.models.das.decision import ClusterTables, Decision, read_decision, summarise
from loadmaster.models.das.explain import OPTIONS, DecisionContext, scored_options
from loadmaster.models.das.network import ActionDistribution, DasNetwork, batch_of_one
from loadmaster.models.das.rule_tilt import tilt_rule
from loadmaster.models.das.settings import training_settings
from loadmaster.models.layers import one_thread
from loadmaster.models.policy import Explanation

CACHED_SIZES = 4  # of clusters; one that loses and regains machines needs a few


class DasPolicy:
    """Acts on the mean of every priority and affinity.

    The number of jobs and past decisions it observes and whether it preempts are those of its
    training: they belong to the policy, not to the environment it is used in. Clusters too large
    for the compiled network are decided in torch.

    `decide` reuses scratch memory and must not be called from several threads; `run` may be.
    """

    def __init__(
        self,
        network: DasNetwork,
        trained_in: GpuSchedulingSettings,
        name: str = "das",
        version: str = "",
    ) -> None:
        self.network, self.trained_in = network.eval(), trained_in
        self.name, self.version = name, version
        self.fixed_settings = {
            field: getattr(trained_in, field)
            for field in ("max_queue", "history", "preempt", "guide")
        }
        self._weights = weights_of(network)

        def buffers(machines: int) -> tuple[Workspace, Scores]:
            return self._workspace(machines), empty_scores(OPTIONS, machines)

        self._buffers = lru_cache(maxsize=CACHED_SIZES)(buffers)

    @classmethod
    def load(cls, folder: Path) -> DasPolicy:
        return cls.from_bundle(load_bundle(folder))

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> DasPolicy:
        network = bundle.build("das")
        assert isinstance(network, DasNetwork)
        return cls(network, training_settings(bundle), bundle.name, bundle.version)

    def decide(self, tables: ClusterTables, phase: int = EVENT) -> tuple[Decision, Explanation]:
        """Decide in one phase, or in all phases of an event; the tables are updated.

        Raises FloatingPointError if the network's output is not finite.
        """
        machines, trained_in = len(tables.cluster.rack), self.trained_in
        view = blank_observation(trained_in.max_queue, tables.cluster, trained_in.history)
        if is_supported(self.network.settings, machines):
            work, scores = self._buffers(machines)
            is_finite = loop.run_event(*tables.simulation, view, self._weights, work, phase, scores)
        else:
            scores = empty_scores(OPTIONS, 0)
            is_finite = self._run_event_in_torch(tables, view, phase, scores)
        if not is_finite:
            raise FloatingPointError(f"policy {self.name!r} returned NaN or infinity")
        decision = read_decision(tables)
        return decision, Explanation(summarise(tables, decision), scored_options(tables, scores))

    def run(
        self, settings: GpuSchedulingSettings, seed: int, workload: Workload, record: bool = False
    ) -> EpisodeResult:
        """Result of the episode of `seed`; with `record`, with its trace."""
        runner = self.start_episode(settings, seed, workload, record)
        machines = len(runner.episode.cluster.rack)
        if is_supported(self.network.settings, machines):
            loop.run_episode(runner, self._weights, self._workspace(machines))
        else:
            while runner.advance_to_decision():
                runner.decide(*self.score(runner).actions)
        return runner.result()

    def start_episode(
        self, settings: GpuSchedulingSettings, seed: int, workload: Workload, record: bool = False
    ) -> EpisodeRunner:
        """The episode before its first decision, with the policy's own settings."""
        settings = settings.model_copy(update=self.fixed_settings)
        runner = EpisodeRunner(settings, seed, workload, record)
        self.tilt_rule(runner.state.rule)
        return runner

    def tilt_rule(self, values: NDArray[np.float64]) -> None:
        """Change the parameters of the rule that the policy corrects."""
        tilt_rule(self.network, values)

    def iterate(
        self, settings: GpuSchedulingSettings, seed: int, workload: Workload
    ) -> Iterator[DecisionContext]:
        """The decisions of `run`; each context is valid until the next one."""
        runner = self.start_episode(settings, seed, workload)
        while runner.advance_to_decision():
            context = self.score(runner)
            yield context
            runner.decide(*context.actions)

    def score(self, runner: EpisodeRunner) -> DecisionContext:
        """Distributions of both agents' actions at the runner's decision."""
        counts = runner.decision_state.counts
        # Without unused rows, in memory that the next decision overwrites.
        observation = batch_of_one(runner.view, int(counts[SHOWN]))
        with torch.no_grad():
            found = self.network(observation)
        return DecisionContext(
            runner.episode, runner.state, int(counts[PHASE]),
            runner.decision_state.shown[: counts[SHOWN]], observation, found.priorities,
            found.placements, runner.decision_state if counts[GUIDE] > 0 else None,
        )  # fmt: skip

    def _workspace(self, machines: int) -> Workspace:
        sizes = self.trained_in.max_queue, machines, self.trained_in.history
        return workspace_for(self.network.settings, *sizes)

    def _run_event_in_torch(
        self, tables: ClusterTables, view: Observation, phase: int, scores: Scores
    ) -> bool:
        """`compiled_loop.run_event` for any number of machines."""
        counts = tables.decision_state.counts
        with torch.no_grad(), one_thread():
            while observe_if_decision(*tables.simulation, view):
                if phase not in (EVENT, counts[PHASE]):
                    break
                found = self.network(batch_of_one(view, int(counts[SHOWN])))
                priority, affinity = (np.ascontiguousarray(mean[0]) for mean in found.mean())
                if loop.score_options(view, tables.decision_state, priority, affinity, scores):
                    _score_uncertainty(found, scores)
                if not apply_action(*tables.simulation, NO_REWARD, priority, affinity):
                    return False
                if phase != EVENT:
                    break
        return True


def _score_uncertainty(found: ActionDistribution, scores: Scores) -> None:
    priorities, placements = found
    rows, machines = scores.counts[loop.ROWS], scores.counts[loop.MACHINES]
    scores.priority_log_std[:rows] = priorities.log_std[0].numpy()[scores.rows[:rows]]
    if machines:
        std = placements.affinities.std[placements.row == scores.rows[0]][0].numpy()
        scores.affinity_std[:machines] = std[scores.machines[:machines]]
