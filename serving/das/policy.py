"""A bundle of DAS at work on states that come from outside."""

from __future__ import annotations

from pathlib import Path

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling import desk as on
from loadmaster.envs.gpu_scheduling.actions import apply_action
from loadmaster.envs.gpu_scheduling.observation import blank_observation, observe_if_asked
from loadmaster.envs.gpu_scheduling.rewards import Terms
from loadmaster.envs.gpu_scheduling.rules import GIVEN
from loadmaster.models.bundle import load_bundle
from loadmaster.models.das.kernel import serves
from loadmaster.models.das.network import DasNetwork
from loadmaster.models.das.training import training_settings
from loadmaster.serving.das.agents import Agents, CompiledAgents, TorchAgents
from loadmaster.serving.das.decisions import decision_of
from loadmaster.serving.das.reasons import Weighing, summary_of
from loadmaster.serving.das.schema import DasState
from loadmaster.serving.das.tables import Tables, tables_of
from loadmaster.serving.endpoint import Proposal, Reason

_NO_REWARD = Terms(1.0, 1.0, 0.0, 1.0, 1.0)  # an action is told its worth, and here nobody asks


class DasPolicy:
    """Takes the mean of every priority and affinity, as in an episode.

    It looks at as many jobs and past decisions as when it learnt, and preempts if it did so then.
    """

    def __init__(self, folder: Path) -> None:
        bundle = load_bundle(folder)
        if bundle.system != "das":
            raise InputError(f"{folder} holds a policy of {bundle.system!r}; expected one of 'das'")
        network = bundle.build()
        assert isinstance(network, DasNetwork)
        self.name, self.version = bundle.name, bundle.version
        learnt_in = training_settings(bundle)
        self._settings = {
            backfill: learnt_in.model_copy(update={"backfill": backfill})
            for backfill in (False, True)
        }
        self._queue, self._past = learnt_in.max_queue, learnt_in.history
        self._network = network.settings
        self._compiled = CompiledAgents(network, self._queue, self._past)
        self._in_torch = TorchAgents(network)

    def decide(self, state: DasState) -> Proposal:
        """Raises FloatingPointError where the network's numbers are none."""
        tables = tables_of(state, self._settings[state.backfill], GIVEN)
        weighing = Weighing(self._agents(len(state.machines)))
        self._act(tables, weighing, state.ask)
        decision = decision_of(tables)
        return Proposal(decision, Reason(summary_of(state, decision), weighing.choices))

    def _agents(self, machines: int) -> Agents:
        return self._compiled if serves(self._network, machines) else self._in_torch

    def _act(self, tables: Tables, weighing: Weighing, ask: str) -> None:
        """Answer what is asked, one moment or as many as the event has."""
        agents, counts = self._agents(len(tables.machines)), tables.desk.counts
        view = blank_observation(self._queue, tables.cluster, self._past)
        standing = tables.state, tables.cluster, tables.jobs, tables.desk
        while observe_if_asked(*standing, view):
            if ask not in ("event", on.MOMENTS[int(counts[on.MOMENT])]):
                return
            priority, affinity = agents.decide(view, int(counts[on.SHOWN]))
            weighing.take_in(tables, view, priority, affinity)
            if not apply_action(*standing, _NO_REWARD, priority, affinity):
                raise FloatingPointError(f"policy {self.name!r} gives numbers that are not finite")
            if ask != "event":
                return
