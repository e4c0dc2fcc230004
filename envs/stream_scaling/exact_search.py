"""Optimal schedule of a job with one task, by depth-first branch and bound.

Class of schedules: at the first decision and every `decide_every_min` after it the job goes on, or
is rescaled to any parallelism from 1 to the most its task can have. All of them are searched, with
true states of the simulator and the episode's own load and faults. A branch is cut when its reward
and an upper bound on what can follow do not exceed the best schedule so far, so the result is the
optimum of this class. Rules that decide between those minutes are outside it, unless
`decide_every_min` is 1. Instances that need more than NODES_MAX simulated decisions are refused.

The bound of a minute with p instances: at the end of the minute they hold at least p l(u) records,
where u is the busy share and l(u) the stationary mean of `queueing.py` (its step is implicit), and
at least the arrivals that they did not process. The latency is at least the time in which so many
records came last. The bound is the largest reward over u. A switch bounds u by the share of the
minute in which the job is up. The bounds of the minutes of a decision are added, and a Viterbi
recursion over p adds the decisions. It leaves out all other costs of a switch.
"""

import math

import numpy as np

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.errors import InputError
from loadmaster.envs.queueing import shared_number
from loadmaster.envs.stream_scaling.episode import EpisodeResult, Setup
from loadmaster.envs.stream_scaling.restart import rescale
from loadmaster.envs.stream_scaling.schedule import (
    Schedule,
    copy_slot,
    new_slots,
    reward_so_far,
    reward_weights,
    schedule_result,
    slot_of,
    start_episode,
)
from loadmaster.envs.stream_scaling.settings import WARM_UP_MIN, StreamScalingSettings
from loadmaster.envs.stream_scaling.simulator import advance, instance_speed
from loadmaster.envs.stream_scaling.state import (
    HORIZON,
    NOTHING,
    SUM_BUSY_SHARE,
    SUM_LATENCY,
    Floats,
    Ints,
    JobTables,
    SimConstants,
    SimState,
)

POLICY = "optimal"
NODES_MAX = 3_000_000
DECISIONS_MAX = 500
_SHARES = 400  # intervals of the busy share
_SLACK = 1e-6  # of a minute's bound: metrics are single precision


def run_optimal(
    settings: StreamScalingSettings, setup: Setup, seed: int, *, record: bool = False
) -> EpisodeResult:
    """Run the optimal schedule of the episode of `seed`; InputError if it is too large."""
    tasks, every = len(setup.tables.cap), settings.decide_every_min
    if tasks != 1:
        raise _too_large(f"the job has {tasks} tasks")
    decisions = -(-settings.minutes // every)
    if decisions > DECISIONS_MAX:
        raise _too_large(f"it has {decisions:,} decisions")
    start, most = start_episode(settings, setup, seed), int(setup.tables.cap[0])
    weights = reward_weights(settings)
    bound = np.zeros((decisions + 1, most + 1))
    bound_rewards(setup.tables, start.constants, start.state, weights, every, bound)
    chosen, best = np.zeros((2, decisions), np.int64)
    found = search_schedules(
        setup.tables, start.constants, new_slots(start.state, decisions + 1), weights, every,
        bound, np.zeros(decisions, np.int64), chosen, best, np.zeros(1, np.int64), NODES_MAX,
    )  # fmt: skip
    if not found:
        raise _too_large(f"more than {NODES_MAX:,} decisions were tried")
    switches = np.flatnonzero(best)
    schedule = Schedule(WARM_UP_MIN + every * switches, best[switches][:, None].copy())
    return schedule_result(settings, setup, seed, schedule, POLICY, record=record)


def _too_large(why: str) -> InputError:
    return InputError(
        f"the instance is too large for policy 'optimal': {why}; "
        "expected a job with one task and a short episode, such as minutes=60"
    )


@compiled
def bound_rewards(
    job: JobTables,
    constants: SimConstants,
    state: SimState,
    weights: Floats,
    every: int,
    bound: Floats,
) -> None:
    """Fill `bound`, (decisions + 1, p): the most that can follow if the job has p instances."""
    horizon, most = state.clock[HORIZON], bound.shape[1] - 1
    down = constants.restart_min + job.state_mb[0] * constants.restore_min_per_mb
    for decision in range(len(bound) - 2, -1, -1):
        begin = WARM_UP_MIN + decision * every
        switched = -math.inf
        for count in range(1, most + 1):
            held, restarted = 0.0, 0.0
            for minute in range(begin, min(begin + every, horizon)):
                up = min(1.0, max(0.0, minute + 1.0 - begin - down))
                held += _most_reward(job, constants, state, weights, minute, count, 1.0)
                restarted += _most_reward(job, constants, state, weights, minute, count, up)
            bound[decision, count] = held + bound[decision + 1, count]
            switched = max(switched, restarted + bound[decision + 1, count])
        for count in range(1, most + 1):
            bound[decision, count] = max(bound[decision, count], switched)


@njit_internal
def _most_reward(
    job: JobTables,
    constants: SimConstants,
    state: SimState,
    weights: Floats,
    minute: int,
    count: int,
    up: float,
) -> float:
    """The largest reward of a minute that is possible with `count` instances.

    Within an interval of u the busy share counts with its upper end, the records held with the
    lower or, for the arrivals that are left, with the upper one.
    """
    arrivals = state.load[0, minute]
    capacity = count * instance_speed(job, constants, 0, count, minute)
    a = 0.5 * (1.0 + job.variability[0])  # arrivals at a source are a Poisson process
    best = -math.inf
    for number in range(_SHARES):
        low, high = number / _SHARES, min((number + 1) / _SHARES, up)
        if low > up:
            break
        held = 0.0
        if arrivals > NOTHING:  # without arrivals a queue drains at full speed
            if constants.shared_queue:
                held = shared_number(low, count, a)
            else:
                held = count * (low + a * low * low / max(1.0 - low, NOTHING))
        held = max(held, arrivals - high * capacity)
        latency = _age(state, minute, held * (1.0 - _SLACK) - _SLACK)
        reward = weights[SUM_BUSY_SHARE] * high + weights[SUM_LATENCY] * latency
        best = max(best, reward)
    return best + _SLACK


@njit_internal
def _age(state: SimState, minute: int, records: float) -> float:
    """Minutes in which the last so many records came, at the end of a minute."""
    place = minute
    while place > 0 and records > state.load[0, place]:
        records -= state.load[0, place]
        place -= 1
    share = min(records / max(state.load[0, place], NOTHING), 1.0)
    return minute - place + share if records > NOTHING else 0.0


@compiled
def search_schedules(
    job: JobTables,
    constants: SimConstants,
    slots: SimState,
    weights: Floats,
    every: int,
    bound: Floats,
    tried: Ints,
    chosen: Ints,
    best: Ints,
    plan: Ints,
    budget: int,
) -> bool:
    """Search all schedules and write the best to `best`; False if the budget did not suffice.

    A decision is 0 to go on, or the new parallelism. Slot d holds the state after d decisions,
    `tried[d]` the number of options tried there.
    """
    most, depth, record = bound.shape[1] - 1, 0, -math.inf
    for option in range(most + 1):  # plans that never change again: a good one cuts most branches
        for place in range(len(chosen)):
            chosen[place] = 0 if place else option
            _decide(job, constants, slots, min(place, 1), 1, chosen[place], every, plan)
        record = _keep_better(reward_so_far(slot_of(slots, 1), weights), record, chosen, best)
    while depth >= 0:
        option = tried[depth]
        if option > most:
            depth -= 1
            continue
        tried[depth] += 1
        same = option == slots.parallelism[depth, 0]
        if same and not constants.published:  # as to go on
            continue
        budget -= 1
        if budget < 0:
            return False
        chosen[depth] = option
        _decide(job, constants, slots, depth, depth + 1, option, every, plan)
        state = slot_of(slots, depth + 1)
        value = reward_so_far(state, weights)
        if depth + 1 == len(chosen):
            record = _keep_better(value, record, chosen, best)
        elif value + bound[depth + 1, state.parallelism[0]] > record:
            depth += 1
            tried[depth] = 0
    return True


@njit_internal
def _decide(
    job: JobTables,
    constants: SimConstants,
    slots: SimState,
    source: int,
    target: int,
    option: int,
    every: int,
    plan: Ints,
) -> None:
    """Simulate one decision from the state in slot `source`, and put the result in `target`."""
    copy_slot(slots, source, target)
    state = slot_of(slots, target)
    if option > 0:
        plan[0] = option
        rescale(job, constants, state, plan)
    advance(job, constants, state, every)


@njit_internal
def _keep_better(value: float, record: float, chosen: Ints, best: Ints) -> float:
    """Copy the schedule `chosen` to `best` if its value is higher; the higher value."""
    if value > record:
        for place in range(len(chosen)):
            best[place] = chosen[place]
    return max(value, record)
