"""Clairvoyant oracle: a schedule searched with the episode's own load and faults.

It starts from the schedules of all rivals, then alternates two searches: over blocks of time with a
family of plans (`block_search.py`), and local changes of the best schedule (`local_search.py`),
whose plans join the family of the next round. Every schedule is simulated and the best one wins. As
the rivals' own schedules are among them, its reward is never below that of a rival. It may switch
in any minute, and is a heuristic: a better schedule can exist.
"""

from collections.abc import Sequence

import numpy as np

from loadmaster.envs.errors import InputError
from loadmaster.envs.stream_scaling.baselines import Baseline
from loadmaster.envs.stream_scaling.block_search import plan_family, search_blocks
from loadmaster.envs.stream_scaling.episode import EpisodeResult, Setup
from loadmaster.envs.stream_scaling.local_search import LocalSearch
from loadmaster.envs.stream_scaling.schedule import (
    Schedule,
    record_schedule,
    reward_weights,
    schedule_result,
    start_episode,
)
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.envs.stream_scaling.state import Ints

POLICY = "clairvoyant"
ROUND_EPISODES = (15, 25)  # by round: simulated time of the local search, in episodes
KEPT_PLANS = 12  # of the best schedule, for the next family


def run_clairvoyant(
    settings: StreamScalingSettings,
    setup: Setup,
    seed: int,
    rivals: Sequence[Baseline],
    *,
    record: bool = False,
) -> EpisodeResult:
    """Run the best schedule found for the episode of `seed`; deterministic and thread-safe."""
    if not rivals:
        raise InputError("policy 'clairvoyant': no rivals; expected one rule or more")
    recorded = [record_schedule(rival, settings, setup, seed) for rival in rivals]
    best, reward = max(recorded, key=lambda each: each[1])
    start = start_episode(settings, setup, seed)
    job, constants, state = setup.tables, start.constants, start.state
    weights = reward_weights(settings)

    def better(found: Schedule) -> tuple[Schedule, float]:
        value = schedule_result(settings, setup, seed, found, POLICY).reward
        return (found, value) if value > reward else (best, reward)

    for episodes in ROUND_EPISODES:
        plans = _most_used(best, len(state.outcome))
        family = plan_family(job, constants, state.parallelism, state.load, plans)
        best, reward = better(search_blocks(job, constants, state, family, weights))
        budget = episodes * settings.minutes
        search = LocalSearch(job, constants, state, best, weights, budget)
        best, reward = better(search.improve())
    return schedule_result(settings, setup, seed, best, POLICY, record=record)


def _most_used(schedule: Schedule, end: int) -> Ints:
    """(KEPT_PLANS or fewer, N) the schedule's plans that apply longest."""
    plans, number = np.unique(schedule.plans, axis=0, return_inverse=True)
    used = np.bincount(number.ravel(), np.diff([*schedule.minutes, end]), len(plans))
    return plans[np.argsort(-used, kind="stable")[:KEPT_PLANS]]
