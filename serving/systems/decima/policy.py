"""Decima's network at work on states: its best decisions, and why."""

from __future__ import annotations

from pathlib import Path

from loadmaster.envs.errors import InputError
from loadmaster.models.bundle import load_bundle
from loadmaster.models.decima.compiled import Scratch, scratch_for, weights_of
from loadmaster.models.decima.explain import empty_top_options
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.models.policy import Explanation, Option, Proposal
from loadmaster.serving.systems.decima import explanation as wording
from loadmaster.serving.systems.decima.schema import DecimaState
from loadmaster.serving.systems.decima.workspace import NOT_FINITE, Round, Workspace, network_round

TOLD = 5  # stages, and limits, that a reason names


class DecimaPolicy:
    """Takes the best-scored stage and limit, until the round is over."""

    def __init__(self, network: DecimaNetwork, name: str, version: str) -> None:
        self.name, self.version = name, version
        self._network = network
        self._weights = weights_of(network)
        self._desk = Workspace()
        self._executors = 64
        self._scratch = self._scratch_for_desk()
        self._best_stages, self._best_limits = empty_top_options(TOLD), empty_top_options(TOLD)

    def decide(self, state: DecimaState) -> Proposal:
        table = self._desk.open(state)
        room = self._room(int(state.moment.amount.sum()))
        count, options, stages, limits = network_round(
            table.state, table.bank, self._desk.view, self._desk.rows, self._weights, room,
            table.given, self._best_stages, self._best_limits,
        )  # fmt: skip
        if options == 0:
            return _nothing_to_choose(state, table)
        if count == NOT_FINITE:
            raise FloatingPointError(f"{self.name}: scores are not finite")
        choices = {"stage": _stages(table, self._best_stages.told(stages))}
        if limits:
            choices["limit"] = _limits(self._best_limits.told(limits))
        decision = table.decision(count)
        summary = (
            f"{wording.situation(state)}, {wording.counted(options, 'stage')} to choose from: "
            f"{wording.outcome(decision)}"
        )
        return Proposal(decision, Explanation(summary, choices))

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
    return Proposal(decision, Explanation(summary, {}))


def _stages(table: Round, best: list[tuple[int, float, float]]) -> list[Option]:
    """Of the round's first decision, as the limits are."""
    return [
        Option(wording.place(*table.place_of(place)), score, probability=chance)
        for place, score, chance in best
    ]


def _limits(best: list[tuple[int, float, float]]) -> list[Option]:
    return [
        Option(wording.counted(place + 1, "executor"), score, probability=chance)
        for place, score, chance in best
    ]
