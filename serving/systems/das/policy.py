"""A bundle of DAS at work on states that come from outside."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.decision_state import PHASES
from loadmaster.envs.gpu_scheduling.rule_ids import GIVEN
from loadmaster.models.bundle import load_bundle
from loadmaster.models.das.compiled import is_supported
from loadmaster.models.das.compiled_event import EVENT, MACHINES, ROWS, Scores
from loadmaster.models.das.network import DasNetwork
from loadmaster.models.das.settings import training_settings
from loadmaster.models.layers import Table
from loadmaster.models.policy import Explanation, Option, Proposal
from loadmaster.serving.systems.das.agents import Agents, CompiledAgents, TorchAgents
from loadmaster.serving.systems.das.decisions import decision_of
from loadmaster.serving.systems.das.explanation import summary_of
from loadmaster.serving.systems.das.schema import DasState
from loadmaster.serving.systems.das.tables import Tables, tables_of

_MOMENT = {"event": EVENT, **{name: moment for moment, name in PHASES.items()}}


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
        self._network = network.settings
        sees = learnt_in.max_queue, learnt_in.history
        self._compiled = CompiledAgents(network, *sees)
        self._in_torch = TorchAgents(network, *sees)

    def decide(self, state: DasState) -> Proposal:
        """Raises FloatingPointError where the network's numbers are none."""
        tables = tables_of(state, self._settings[state.backfill], GIVEN)
        weighed = self._agents(len(state.machines)).answer(tables, _MOMENT[state.ask])
        if weighed is None:
            raise FloatingPointError(f"policy {self.name!r} gives numbers that are not finite")
        decision = decision_of(tables)
        return Proposal(
            decision, Explanation(summary_of(state, decision), choices_of(tables, weighed))
        )

    def _agents(self, machines: int) -> Agents:
        return self._compiled if is_supported(self._network, machines) else self._in_torch


def choices_of(tables: Tables, weighed: Scores) -> dict[str, list[Option]]:
    """What was weighed, by name; nothing where nothing was asked."""
    rows, machines = weighed.counts[ROWS], weighed.counts[MACHINES]
    found: dict[str, list[Option]] = {}
    if rows:
        names = [f"job {tables.arrivals[job].id}" for job in weighed.jobs[:rows].tolist()]
        found["job"] = _choices(names, weighed.priority, np.exp(weighed.priority_log_std))
    if machines:
        names = [tables.machines[place].name for place in weighed.machines[:machines].tolist()]
        found["machine"] = _choices(names, weighed.affinity, weighed.affinity_std)
    return found


def _choices(names: list[str], scores: Table, doubts: Table) -> list[Option]:
    """Of the first so many."""
    return [
        Option(name, round(score, 6), round(doubt, 6))
        for name, score, doubt in zip(names, scores.tolist(), doubts.tolist(), strict=False)
    ]
