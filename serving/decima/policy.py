"""Decima's network at work on states: its best decisions, and why."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from loadmaster.envs.errors import InputError
from loadmaster.models.bundle import load_bundle
from loadmaster.models.decima.explain import Reasons, explain
from loadmaster.models.decima.kernel import Scratch, scratch_for, weights_of
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.serving.decima import wording
from loadmaster.serving.decima.desk import Desk, Round
from loadmaster.serving.decima.rounds import NOT_FINITE, look, network_round, take
from loadmaster.serving.decima.schema import DecimaState
from loadmaster.serving.endpoint import Choice, Proposal, Reason


class DecimaPolicy:
    """Takes the best-scored stage and limit, until the round is over."""

    def __init__(self, network: DecimaNetwork, name: str, version: str) -> None:
        self.name, self.version = name, version
        self._network = network
        self._weights = weights_of(network)
        self._desk = Desk()
        self._executors = 64
        self._scratch = self._scratch_for_desk()

    def decide(self, state: DecimaState) -> Proposal:
        table = self._desk.open(state)
        view, rows, weights = self._desk.view, self._desk.rows, self._weights
        room = self._room(int(state.moment.amount.sum()))
        if look(table.state, table.bank, view, rows) == 0:
            return _nothing_to_choose(state, table)
        with np.errstate(invalid="ignore"):  # said below, once
            reasons = explain(view, weights, room)
        chances = [reasons.stages[0].probability, *(limit.probability for limit in reasons.limits)]
        if not all(map(math.isfinite, chances)):
            raise FloatingPointError(f"{self.name}: scores are not finite")
        choices = _choices(table, rows.tolist(), reasons)
        take(table.state, table.bank, view, rows, reasons.row, reasons.limit, table.given[0])
        count = network_round(table.state, table.bank, view, rows, weights, room, table.given, 1)
        if count == NOT_FINITE:
            raise FloatingPointError(f"{self.name}: scores are not finite")
        decision = table.decision(count)
        summary = (
            f"{wording.situation(state)}, {wording.counted(reasons.schedulable, 'stage')} to "
            f"choose from: {wording.outcome(decision)}"
        )
        return Proposal(decision, Reason(summary, choices))

    def _room(self, executors: int) -> Scratch:
        """Room for whatever the desk has room for."""
        view, scratch = self._desk.view, self._scratch
        small = (
            len(scratch.row) < len(view.stages)
            or scratch.job.shape[1] < len(view.jobs)
            or self._executors < executors
        )
        if small:
            self._executors = max(self._executors, executors)
            self._scratch = self._scratch_for_desk()
        return self._scratch

    def _scratch_for_desk(self) -> Scratch:
        view = self._desk.view
        return scratch_for(self._network, len(view.stages), len(view.jobs), self._executors)


def load_policy(folder: Path) -> DecimaPolicy:
    """The bundle in that folder at work; an InputError says what is wrong with it."""
    bundle = load_bundle(folder)
    if bundle.system != "decima":
        raise InputError(f"{folder} is a bundle of {bundle.system!r}; expected one of 'decima'")
    network = bundle.build()
    assert isinstance(network, DecimaNetwork)
    return DecimaPolicy(network, bundle.name, bundle.version)


def _nothing_to_choose(state: DecimaState, table: Round) -> Proposal:
    decision = table.decision(0)
    summary = f"{wording.situation(state)}, no stage to choose from: {wording.outcome(decision)}"
    return Proposal(decision, Reason(summary, {}))


def _choices(table: Round, rows: list[int], reasons: Reasons) -> dict[str, list[Choice]]:
    """Of the round's first decision."""
    stages = [
        Choice(
            wording.place(*table.place_of(rows[option.row])),
            option.score,
            probability=option.probability,
        )
        for option in reasons.stages
    ]
    limits = [
        Choice(
            wording.counted(option.limit, "executor"), option.score, probability=option.probability
        )
        for option in reasons.limits
    ]
    return {"stage": stages, "limit": limits} if limits else {"stage": stages}
