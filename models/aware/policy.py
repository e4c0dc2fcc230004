"""AWARE's policy: margins by the actor, a plan by them, and what it remembers of an application."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from loadmaster.envs.pod_scaling.actions import plan_of_action
from loadmaster.envs.pod_scaling.applications import TRAIN
from loadmaster.envs.pod_scaling.episode import EpisodeResult, Setup
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.pod_scaling.settings import STEP_INTERVALS, PodScalingSettings
from loadmaster.envs.pod_scaling.state import (
    NOW,
    REWARD,
    Floats,
    SimConstants,
    SimState,
)
from loadmaster.models.aware.choice import (
    MEMORY_FORMAT,
    PodDecision,
    Remembered,
    Singles,
    nothing_known,
    trajectory_of,
    unpack,
)
from loadmaster.models.aware.encoder import Trajectory
from loadmaster.models.aware.estimates import (
    begin_episode,
    blank_application,
    forecast_numbers,
)
from loadmaster.models.aware.explain import explain
from loadmaster.models.aware.features import (
    FEATURES,
    input_mask,
    margins_of,
    write_features,
)
from loadmaster.models.aware.network import AwareNetwork
from loadmaster.models.aware.novelty import Novelty, trained_applications
from loadmaster.models.aware.pod_model import Forecast
from loadmaster.models.aware.rule import Scratch, carry_out, observe_step, plan_step, scratch
from loadmaster.models.aware.settings import MARGINS, AwareSettings, training_settings
from loadmaster.models.bundle import Bundle
from loadmaster.models.policy import EpisodeStep, Explanation


class Served(NamedTuple):
    """A decision for the service, and what to remember of the application."""

    plan: Floats
    memory: Singles  # packed estimates
    reason: Explanation
    unknown: str = ""  # how the application differs from known ones, if it is unknown
    step: EpisodeStep | None = None  # for the next embedding; None: the policy has no encoder


class Step(NamedTuple):
    """A decision of an episode, before it is carried out."""

    runner: EpisodeRunner
    decision: PodDecision


class AwarePolicy:
    """Decides by the greedy actor. Stateless: what it remembers is given and returned."""

    memory_format = MEMORY_FORMAT

    def __init__(
        self,
        network: AwareNetwork,
        trained_in: PodScalingSettings,
        name: str = "aware",
        version: str = "",
    ) -> None:
        self.network, self.trained_in = network.eval(), trained_in
        self.name, self.version = name, version
        self.settings: AwareSettings = network.aware
        self._tables = network.tables()
        self.mask = input_mask(self.settings.inputs)
        self._base = np.array(self.settings.rule.margins)
        self._reach = np.array(self.settings.reach.margins)

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> AwarePolicy:
        network = bundle.build("aware")
        assert isinstance(network, AwareNetwork)
        return cls(network, training_settings(bundle), bundle.name, bundle.version)

    @cached_property
    def embedding_format(self) -> str:
        """Name of the embeddings of this encoder; "" without one. Only equal weights share them."""
        if self.network.encoder is None:
            return ""
        digest = hashlib.sha256()
        for name, weights in self.network.encoder.state_dict().items():
            digest.update(name.encode())
            digest.update(weights.cpu().contiguous().numpy())
        return f"aware-embedding-{self.settings.context}-{digest.hexdigest()[:12]}"

    def decide(
        self,
        constants: SimConstants,
        state: SimState,
        memory: Singles | None,
        embedding: Singles | None = None,
    ) -> Served:
        """The next plan, with what was remembered of the application; None: it was never seen.

        `embedding`: of its episodes so far; None: there was none yet.
        """
        known = unpack(memory, embedding, self.settings.context)
        notes = [] if memory is not None else ["the application is new: estimates from this state"]
        found = self.choose(constants, state, known)
        novelty = self.novelty(found.app, known)
        unknown = novelty.note if novelty is not None and novelty.is_unknown else ""
        if unknown:
            notes.append(unknown)
        reason = explain(found, state.plan, self.settings.rule, notes)
        step = EpisodeStep(found.features, found.action) if self.settings.context else None
        return Served(found.plan, known.packed(), reason, unknown, step)

    def novelty(self, app: Floats, known: Remembered) -> Novelty | None:
        """How far an application is from those of the training; `app` is by its estimates.

        None if too little is known of it, or if the policy was not trained on the generated set,
        as one that was trained further on this very application.
        """
        if self.trained_in.application != TRAIN:
            return None
        return trained_applications().compare(app, known.estimates)

    def choose(
        self,
        constants: SimConstants,
        state: SimState,
        known: Remembered,
        tables: Scratch | None = None,
        noise: Singles | None = None,
    ) -> PodDecision:
        """The next plan; `known.estimates` are updated by the last control step.

        `noise` (action,) is added to the actor's action. Raises FloatingPointError if the network's
        output is not finite.
        """
        tables = tables or scratch()
        app, features = blank_application(), np.zeros(FEATURES, np.float32)
        observe_step(constants, state, self.settings.rule.gain, known.estimates, app, tables)
        write_features(constants, state, known.estimates, app, features)
        features *= self.mask
        action = self._act(features, known.embedding)
        if noise is not None:
            action = np.clip(action + noise, -1, 1)
        forecast = Forecast(*forecast_numbers(known.estimates))
        if not self.settings.follows_rule:
            plan = np.array(plan_of_action(constants, action))
            return PodDecision(plan, action, None, features, app, forecast, math.nan)
        margins = margins_of(self._base, self._reach, action)
        expected = plan_step(constants, state, margins, known.estimates, app, tables)
        return PodDecision(tables.plan.copy(), action, margins, features, app, forecast, expected)

    def _act(self, features: Singles, embedding: Singles) -> Singles:
        """The actor's action; the rule's, which is 0, where there is a rule and no embedding yet.

        Without one the actor is worse than the rule it starts from: 3.7% of the converged reward
        on three unseen applications (`first_reward_deficit` of `bench adaptation`).
        """
        if self.settings.follows_rule and self.settings.context and not embedding.any():
            return np.zeros(len(MARGINS), np.float32)
        context = torch.from_numpy(embedding)[None] if self.settings.context else None
        with torch.no_grad():
            found, _ = self._tables.act(torch.from_numpy(features)[None], context)
        action: Singles = found[0].numpy()
        if not np.isfinite(action).all():
            raise FloatingPointError(f"policy {self.name!r} returned NaN or infinity")
        return action

    def run(
        self,
        settings: PodScalingSettings,
        seed: int,
        workload: Setup,
        known: Remembered | None = None,
    ) -> EpisodeResult:
        """Result of the episode of `seed`; `known` is updated."""
        runner = EpisodeRunner(settings, workload, seed)
        for step in self.steps(runner, known or nothing_known(self.settings.context)):
            carry_out(workload.constants, runner.episode.state, step.decision.plan)
        return runner.result(self.name)

    def steps(
        self, runner: EpisodeRunner, known: Remembered, noise: Singles | None = None
    ) -> Iterator[Step]:
        """The decisions of an episode; the caller carries each out.

        `noise` (steps, action) is added to the actor's actions.
        """
        begin_episode(known.estimates)
        constants, state, tables = runner.setup.constants, runner.episode.state, scratch()
        while not runner.over:
            added = None if noise is None else noise[runner.step]
            yield Step(runner, self.choose(constants, state, known, tables, added))

    def record(
        self,
        settings: PodScalingSettings,
        seed: int,
        workload: Setup,
        known: Remembered,
        noise: Singles | None = None,
    ) -> tuple[EpisodeResult, Trajectory]:
        """An episode and its trajectory for the encoder: features, actions, rewards."""
        runner, steps, rewards = EpisodeRunner(settings, workload, seed), [], []
        state = runner.episode.state
        for step in self.steps(runner, known, noise):
            carry_out(workload.constants, state, step.decision.plan)
            rewards.append(state.outcome[int(state.clock[NOW]) // STEP_INTERVALS - 1, REWARD])
            steps.append((step.decision.features, step.decision.action))
        features, actions = (np.array(column) for column in zip(*steps, strict=True))
        return runner.result(self.name), trajectory_of(features, actions, np.array(rewards))

    def embed(self, trajectories: Sequence[Trajectory]) -> Singles:
        """The embedding of an application from its trajectories, all of them."""
        if self.network.encoder is None or not trajectories:
            return np.zeros(self.settings.context, np.float32)
        with torch.no_grad():
            found = self.network.encoder.embed([[torch.from_numpy(t) for t in trajectories]])
        embedding: Singles = found[0].numpy()
        return embedding
