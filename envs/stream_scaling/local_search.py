"""Local search on a schedule of one episode, every change simulated.

The present schedule has its state stored every hour. A change is simulated from the state before
it until the job holds as many records as under the present schedule, so later minutes need no
simulation. What is accepted is simulated again before it is compared with anything else.
"""

import numpy as np

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.stream_scaling.schedule import (
    Schedule,
    copy_slot,
    fit_plans,
    new_slots,
    next_switch,
    reward_so_far,
    run_minute,
    slot_of,
)
from loadmaster.envs.stream_scaling.settings import WARM_UP_MIN
from loadmaster.envs.stream_scaling.state import (
    HORIZON,
    MINUTE,
    Floats,
    Ints,
    JobTables,
    SimConstants,
    SimState,
)

STORED_MIN = 60  # between stored states
SETTLED_MIN = 15  # simulated after a change at least
SHIFTS_MIN = (32, 16, 8, 4, 2, 1)
_LEAST_BUSY, _MOST_BUSY = 0.5, 0.98  # to add an instance; after one is removed
_EQUAL = 1e-3  # relative difference of the records in the job


class LocalSearch:
    """Improves `schedule` until no change does, or `budget` minutes are simulated."""

    def __init__(
        self,
        job: JobTables,
        constants: SimConstants,
        state: SimState,
        schedule: Schedule,
        weights: Floats,
        budget: int,
    ) -> None:
        self.schedule = schedule
        self.budget = budget
        self._job, self._constants, self._weights = job, constants, weights
        self._horizon = int(state.clock[HORIZON])
        self._stored = 1 + (self._horizon - WARM_UP_MIN) // STORED_MIN
        self._slots = new_slots(state, self._stored + 1)
        self._plan = np.zeros_like(state.parallelism)
        self._load = state.load.max(axis=0)
        self._work = job.nominal * job.service_min  # busy instances for one record a minute
        self._queued = np.zeros(self._horizon + 1)
        self._rewards = np.zeros(self._horizon + 1)
        self._known = WARM_UP_MIN  # minute up to which the tables are of the present schedule

    def improve(self) -> Schedule:
        """Search until nothing improves, and return the schedule found."""
        improved = True
        while improved and self.budget > 0:
            improved = False
            place = 0
            while place < len(self.schedule.minutes) and self.budget > 0:
                changed = self._shift(place)
                changed |= self._change_tasks(place)
                before = len(self.schedule.minutes)
                changed |= self._drop(place)
                improved |= changed
                if len(self.schedule.minutes) == before:
                    place += 1
        return self.schedule

    def _shift(self, place: int) -> bool:
        """Move a switch in steps, as long as it helps."""
        improved = False
        for step in (sign * size for size in SHIFTS_MIN for sign in (-1, 1)):
            while self._shift_by(place, step):
                improved = True
        return improved

    def _shift_by(self, place: int, step: int) -> bool:
        minutes, plans = self.schedule
        moved = int(minutes[place]) + step
        if not self._end_of(place - 1, begin=True) < moved < self._end_of(place):
            return False
        changed = minutes.copy()
        changed[place] = moved
        first, last = sorted((int(minutes[place]), moved))
        return self._accept(Schedule(changed, plans), first, last)

    def _end_of(self, place: int, *, begin: bool = False) -> int:
        """The minute in which the segment of a switch ends, or begins."""
        minutes = self.schedule.minutes
        if begin:
            return int(minutes[place]) if place >= 0 else WARM_UP_MIN - 1
        return int(minutes[place + 1]) if place + 1 < len(minutes) else self._horizon

    def _drop(self, place: int) -> bool:
        """Leave a switch out: the plan before it goes on, or its plan begins a segment earlier."""
        minutes, plans = self.schedule
        begin, end = int(minutes[place]), self._end_of(place)
        without = Schedule(np.delete(minutes, place), np.delete(plans, place, axis=0))
        if self._accept(without, begin, end):
            return True
        if place == 0:
            return False
        merged = Schedule(np.delete(minutes, place), np.delete(plans, place - 1, axis=0))
        return self._accept(merged, int(minutes[place - 1]), begin)

    def _change_tasks(self, place: int) -> bool:
        """One instance more or less of a task, and of its chain, in a segment."""
        improved = False
        minutes = slice(int(self.schedule.minutes[place]), self._end_of(place))
        work = self._work * float(self._load[minutes].mean())
        for task in np.unique(self._job.chain):
            members = self._job.chain == task
            for step in (-1, 1):
                count = int(self.schedule.plans[place, task])
                crowding = 1 + self._constants.contention * (count - 1 + min(step, 0))
                busy = float(work[members].max()) * crowding / max(count + min(step, 0), 1)
                # Far from these limits a change only idles instances, or overloads them.
                if busy > _LEAST_BUSY if step > 0 else busy < _MOST_BUSY and count > 1:
                    while self._change_task(place, int(task), step):
                        improved = True
        return improved

    def _change_task(self, place: int, task: int, step: int) -> bool:
        minutes, plans = self.schedule
        changed = plans.copy()
        changed[place, self._job.chain == task] += step
        fit_plans(self._job, self._constants, changed[place : place + 1])
        if (changed[place] == plans[place]).all():
            return False
        begin, end = int(minutes[place]), self._end_of(place)
        return self._accept(Schedule(minutes, changed), begin, end)

    def _accept(self, changed: Schedule, first: int, last: int) -> bool:
        """Simulate a schedule that differs in some minutes, and take it if its reward is higher."""
        if self.budget <= 0:
            return False
        least = min(last + SETTLED_MIN, self._horizon)
        self._extend(min(least + STORED_MIN, self._horizon))
        slot = (first - WARM_UP_MIN) // STORED_MIN
        begin = WARM_UP_MIN + slot * STORED_MIN
        end = run_until_equal(
            self._job, self._constants, self._slots, slot, self._stored, *changed, self._plan,
            least, self._known, self._queued,
        )  # fmt: skip
        self.budget -= end - begin
        reward = float(self._weights @ self._slots.sums[self._stored])
        if not reward > self._rewards[end] + 1e-9:
            return False
        self.schedule, self._known = changed, begin
        return True

    def _extend(self, until: int) -> None:
        """Simulate the present schedule up to a minute, and store what comparisons need."""
        if until <= self._known:
            return
        begin = self._known - (self._known - WARM_UP_MIN) % STORED_MIN
        extend_stored(
            self._job, self._constants, self._slots, self._stored, STORED_MIN, begin, until,
            *self.schedule, self._plan, self._weights, self._queued, self._rewards,
        )  # fmt: skip
        self.budget -= until - begin
        self._known = until


@compiled
def extend_stored(
    job: JobTables,
    constants: SimConstants,
    slots: SimState,
    scratch: int,
    every: int,
    begin: int,
    until: int,
    minutes: Ints,
    plans: Ints,
    plan: Ints,
    weights: Floats,
    queued: Floats,
    rewards: Floats,
) -> None:
    """Simulate from the stored state of minute `begin`; store states, records and rewards."""
    copy_slot(slots, (begin - WARM_UP_MIN) // every, scratch)
    state = slot_of(slots, scratch)
    switch = next_switch(minutes, begin)
    while state.clock[MINUTE] < until:
        switch = run_minute(job, constants, state, minutes, plans, switch, plan)
        minute = state.clock[MINUTE]
        queued[minute], rewards[minute] = _records(state), reward_so_far(state, weights)
        if (minute - WARM_UP_MIN) % every == 0:
            copy_slot(slots, scratch, (minute - WARM_UP_MIN) // every)


@compiled
def run_until_equal(
    job: JobTables,
    constants: SimConstants,
    slots: SimState,
    first: int,
    scratch: int,
    minutes: Ints,
    plans: Ints,
    plan: Ints,
    least: int,
    most: int,
    queued: Floats,
) -> int:
    """Simulate from a slot to minute `least`, then until the job holds `queued` records.

    Stops at minute `most` in any case. Returns the minute; the state is in slot `scratch`.
    """
    copy_slot(slots, first, scratch)
    state = slot_of(slots, scratch)
    switch = next_switch(minutes, state.clock[MINUTE])
    while state.clock[MINUTE] < most:
        minute = state.clock[MINUTE]
        if minute >= least and abs(_records(state) - queued[minute]) <= _EQUAL * queued[minute]:
            break
        switch = run_minute(job, constants, state, minutes, plans, switch, plan)
    return state.clock[MINUTE]


@njit_internal
def _records(state: SimState) -> float:
    total = 0.0
    for kind in range(state.queue.shape[0]):
        for task in range(state.queue.shape[1]):
            total += state.queue[kind, task]
    return total
