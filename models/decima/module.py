"""Decima's network as an RLlib module: from observations to actions and their probability."""

from collections.abc import Callable
from typing import Any, Self

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor

from loadmaster.envs.dag_scheduling import observation as obs_cols
from loadmaster.envs.settings import build_settings
from loadmaster.models.decima.device_batch import DeviceDecisions, DeviceMinibatches
from loadmaster.models.decima.device_tables import Places, Workspace, places_in
from loadmaster.models.decima.features import StageBatch, job_inputs_of, stage_inputs_of
from loadmaster.models.decima.gradient import (
    DecisionMinibatches,
    SelectedDecisions,
    log_probability_and_entropy,
)
from loadmaster.models.decima.network import ILLEGAL, DecimaNetwork, MessageSchedule
from loadmaster.models.decima.settings import DecimaSettings
from loadmaster.models.policy import ENTROPY
from loadmaster.models.ragged import Minibatches


class DecimaModule(TorchRLModule):
    """An action is (stage row, limit); observations are padded tables of any size.

    The limit depends on the stage, so both are sampled here, one after the other, and RLlib
    receives actions instead of the parameters of a distribution.

    `model_config`: "network", the fields of DecimaSettings, and "limits", the highest limit: the
    executors of the cluster.
    """

    def setup(self) -> None:
        settings = build_settings(DecimaSettings, self.model_config["network"])
        self.network = DecimaNetwork(settings)
        self.limits: int = self.model_config["limits"]
        self._workspace: Workspace | None = None

    def train(self, mode: bool = True) -> Self:
        """Set the mode of this module alone: no layer has one, and RLlib sets it in every pass."""
        self.training = mode
        return self

    def minibatches(self, columns: dict[str, Any], device: Any) -> Minibatches:
        """Recorded decisions for the compiled pass on a CPU, or in fixed tables on a GPU."""
        if torch.device(device).type == "cpu":
            return DecisionMinibatches(columns, self.network)
        self._workspace = self._workspace or Workspace(device)
        return DeviceMinibatches(columns, device, self._workspace)

    def _forward_inference(self, batch: dict[str, Any], **_: Any) -> dict[str, Tensor]:
        """The best-scored stage, and the best-scored limit for it."""
        return self._decide(batch[Columns.OBS], lambda scores: scores.argmax(1))

    def _forward_exploration(self, batch: dict[str, Any], **_: Any) -> dict[str, Tensor]:
        """A sampled stage, and a sampled limit for it."""
        return self._decide(
            batch[Columns.OBS], lambda scores: torch.multinomial(scores.softmax(1), 1).squeeze(1)
        )

    def _forward_train(self, batch: dict[str, Any], **_: Any) -> dict[str, Tensor]:
        """Log-probabilities of the batch's actions, and entropies: (B,) each.

        The entropy is that of the stage plus that of the limit given the batch's stage.
        """
        observation = batch[Columns.OBS]
        if isinstance(observation, SelectedDecisions):
            log_probability, entropy = log_probability_and_entropy(observation)
            return {Columns.ACTION_LOGP: log_probability, ENTROPY: entropy}
        if isinstance(observation, DeviceDecisions):
            return self._forward_device(observation)
        stage, limit = batch[Columns.ACTIONS].long().unbind(1)
        scores, packed, embedded = self.network(observation)
        limit_scores = self.network.limit_scores(observation, packed, embedded, stage, self.limits)
        stages, limits = scores.log_softmax(1), limit_scores.log_softmax(1)
        return {
            Columns.ACTION_LOGP: _at(stages, stage) + _at(limits, limit - 1),
            ENTROPY: _entropy(stages) + _entropy(limits),
        }

    def _forward_device(self, given: DeviceDecisions) -> dict[str, Tensor]:
        network, sizes = self.network, given.sizes
        places = places_in(given.ints.long(), sizes)
        batch = network.without_unread(_stage_batch(given, places))
        edges = torch.split(torch.stack([places.child, places.parent]), list(sizes.edges), dim=1)
        schedule = MessageSchedule(list(sizes.levels), edges)
        embedded = network.embed(batch, sizes.decisions, schedule)
        owner = places.legal_decision
        scores = network.score_rows(batch, embedded, places.legal_stage, owner)
        stages = _padded(scores, owner, places.legal_place, sizes.decisions, sizes.widest[0])
        log_probability, entropy = _at(stages, places.chosen_stage), _entropy(stages)
        if network.score_limit is not None:
            total, owner = given.cluster[:, obs_cols.TOTAL_EXECUTORS], places.limit_decision
            scores = network.score_levels(batch, embedded, places.job, total, owner, places.limit)
            limits = _padded(scores, owner, places.limit_place, sizes.decisions, sizes.widest[1])
            log_probability = log_probability + _at(limits, places.chosen_limit)
            entropy = entropy + _entropy(limits)
        return {Columns.ACTION_LOGP: log_probability, ENTROPY: entropy}

    @torch.no_grad()
    def _decide(
        self, observation: dict[str, Tensor], choose: Callable[[Tensor], Tensor]
    ) -> dict[str, Tensor]:
        scores, packed, embedded = self.network(observation)
        stage = choose(scores)
        limit_scores = self.network.limit_scores(observation, packed, embedded, stage, self.limits)
        place = choose(limit_scores)
        return {
            Columns.ACTIONS: torch.stack([stage, place + 1], dim=1),
            Columns.ACTION_LOGP: _at(scores.log_softmax(1), stage)
            + _at(limit_scores.log_softmax(1), place),
        }


def _stage_batch(given: DeviceDecisions, places: Places) -> StageBatch:
    """Inputs of the network. What only an observation with padding needs is left empty."""
    cluster, none = given.cluster, places.child[:0]
    jobs = job_inputs_of(given.jobs, cluster.index_select(0, places.job_decision))
    of_stage = jobs.index_select(0, places.stage_job)
    total = cluster[:, obs_cols.TOTAL_EXECUTORS].index_select(0, places.stage_decision)
    return StageBatch(
        inputs=stage_inputs_of(given.stages, of_stage, total),
        height=none,
        schedulable=none,
        row_job=places.stage_job,
        row_observation=places.stage_decision,
        row_place=none,
        job_inputs=jobs,
        job_observation=places.job_decision,
        first_job=none,
        parent=none,
        child=none,
        stages=given.stages,
        jobs=given.jobs,
        cluster=cluster,
    )


def _padded(scores: Tensor, owner: Tensor, place: Tensor, decisions: int, widest: int) -> Tensor:
    """(decisions, widest) log-probabilities of each decision's own options."""
    whole = scores.new_full((decisions * widest,), ILLEGAL)
    return whole.index_copy(0, owner * widest + place, scores).view(-1, widest).log_softmax(1)


def _at(logs: Tensor, chosen: Tensor) -> Tensor:
    """(B,) of (B, choices)"""
    return logs.gather(1, chosen[:, None]).squeeze(1)


def _entropy(logs: Tensor) -> Tensor:
    """(B,) of log-probabilities (B, choices)."""
    # The softmax equals exp(logs), which takes five times as long where most are very negative.
    return -(logs.softmax(1) * logs).sum(1)
