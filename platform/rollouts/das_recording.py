"""Whole episodes of DAS in the compiled loop: recorded for learning, or just lived through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.actions import ORDERING, PLACEMENT
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.episode import EpisodeResult
from loadmaster.envs.gpu_scheduling.rewards import Scales, total_reward
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.sitting import Sitting
from loadmaster.models.das.kernel import room_for, weights_of
from loadmaster.models.das.network import DasNetwork
from loadmaster.platform.rllib.advantages import Rollout
from loadmaster.platform.rllib.columns import Ragged
from loadmaster.platform.rllib.recording import Assignment, Recording
from loadmaster.platform.rollouts.das_loop import (
    FIRST_SUM,
    KEPT,
    ORDER_LOG,
    PLACE_LOG,
    ROWS,
    STEPS,
    TIME_S,
    Tape,
    reel_for,
    run_network,
)
from loadmaster.platform.rollouts.reel import FULL, Reel

COST = "jct_s"


def figures_of(result: EpisodeResult) -> Mapping[str, float]:
    """What a learner is told of an episode that is over."""
    return {COST: result.mean_jct_s, "fee": float(result.fee.mean())}


class Player:
    """A network in one kind of episode: weights, scratch tables, and a tape to play on."""

    def __init__(
        self,
        network: DasNetwork,
        settings: GpuSchedulingSettings,
        cluster: Cluster,
        reel: Reel[Tape] | None = None,
    ) -> None:
        self.settings = settings
        tables = settings.max_queue, len(cluster.rack), settings.history
        self._weights, self._room = weights_of(network), room_for(network.settings, *tables)
        self._reel = reel or reel_for(settings, cluster)

    def play(self, sitting: Sitting) -> int:
        """Take the means until the episode is over; how many decisions that were."""
        self._run(sitting, Assignment(sitting.seed, luck=0, keep=0.0), draws=False)
        return int(self._reel.tape.used[STEPS])

    def record(self, sitting: Sitting, assignment: Assignment, scales: Scales) -> Recording:
        """Sample one rollout and keep a share of it, the same as VectorEngine would."""
        self._run(sitting, assignment, draws=True)
        tape, sums = self._reel.tape, sitting.desk.sums
        facts = tape.facts[: tape.used[STEPS]]
        total = total_reward(
            self.settings, scales, np.concatenate([facts[:, FIRST_SUM:], sums[None]])
        )
        total[0] = 0  # what passed before the first decision joins its reward
        reward = np.diff(total)
        kept = tape.kept[: tape.used[KEPT]].copy()
        return Recording(
            observations=_observations(tape, sitting.view.rack),
            actions={
                ORDERING: _of_jobs(tape, tape.priority),
                PLACEMENT: _of_jobs(tape, tape.affinity),
            },
            log_probability=facts[kept][:, [ORDER_LOG, PLACE_LOG]],
            kept=kept,
            rollout=Rollout(facts[:, TIME_S].copy(), reward, float(sitting.state.times[at.NOW])),
            figures={"return": float(reward.sum()), **figures_of(sitting.result())},
        )

    def _run(self, sitting: Sitting, assignment: Assignment, draws: bool) -> None:
        """To the end, with as much tape and trace as it takes."""
        reel, (cluster, jobs, _) = self._reel, sitting.episode
        reel.rewind()
        rng, chance = np.random.default_rng(assignment.luck), np.zeros(0)
        while True:
            chance = np.append(chance, rng.random(len(reel.tape.facts) - len(chance)))
            status = run_network(
                sitting.state, cluster, jobs, sitting.desk, sitting.terms, sitting.view,
                self._weights, self._room, draws, assignment.luck, assignment.keep, chance,
                reel.tape,
            )  # fmt: skip
            if status == FULL:
                reel.lengthen()
            elif status == at.GROW_TRACE:
                sitting.lengthen_trace()
            else:
                return


def _observations(tape: Tape, rack: NDArray[np.int64]) -> dict[str, Any]:
    """The kept ones, in the words of envs/gpu_scheduling/observation.py."""
    kept, rows = int(tape.used[KEPT]), int(tape.used[ROWS])
    return {
        "jobs": _of_jobs(tape, tape.jobs),
        "job_mask": Ragged(np.ones(rows, np.bool_), tape.counts[:kept].copy()),
        "heeded": _of_jobs(tape, tape.heeded),
        "machines": tape.machines[:kept].copy(),
        "held": _of_jobs(tape, tape.held),
        "rack_held": _of_jobs(tape, tape.rack_held),
        "rack": np.tile(rack, (kept, 1)),
        "history_y": tape.history_y[:kept].copy(),
        "history_mask": tape.history_mask[:kept].copy(),
        "history_t": tape.history_t[:kept].copy(),
    }


def _of_jobs(tape: Tape, table: NDArray[Any]) -> Ragged:
    return Ragged(table[: tape.used[ROWS]].copy(), tape.counts[: tape.used[KEPT]].copy())
