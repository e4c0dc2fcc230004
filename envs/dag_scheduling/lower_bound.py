"""Lower bounds on the mean completion time of a job sequence, for any schedule.

The bounds know the sequence: every arrival and the draws behind every task. A task takes at least
the shortest duration that its draws allow on any number of executors and in any wave, `p`. With
W the sum of p over a job's tasks and E executors:

- `paths`: a job takes at least a move and its longest chain of tasks.
- `srpt`: the cluster as one machine of speed E. Preemptive shortest remaining work first is
  optimal there.
- `busy`: a job ends at least d after the mean busy time of its work, with d the mean over its
  tasks, by p, of p / 2 plus the longest chain behind the task, and at least W / (2 E). Mean busy
  times on the machine of speed E are least when the job with the least W goes first (Goemans 1997).
  The sum is d plus the mean busy time for some jobs and the longest chain for all others, which the
  relaxation leaves out. Any choice of these jobs is valid; a greedy one is used.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import Ints, compiled, splitmix64
from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.jobs import JobTemplates, Workload
from loadmaster.envs.dag_scheduling.rollout import initial_state
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings

Floats = NDArray[np.float64]
_LOW, _S32 = np.uint64(0xFFFFFFFF), np.uint64(32)


@dataclass(frozen=True)
class JctBounds:
    """Lower bounds on the mean completion time, s."""

    paths: float
    srpt: float
    busy: float

    @property
    def best(self) -> float:
        return max(self.paths, self.srpt, self.busy)


@dataclass(frozen=True)
class _Job:
    """What a job needs at least; times in ms."""

    release: float  # of its first task
    path: float  # the longest chain of tasks
    length: float  # W / E: its work on the machine of speed E
    delay: float  # from the mean busy time of its work to its end


def jct_bounds(settings: DagSchedulingSettings, workload: Workload, seed: int) -> JctBounds:
    """Bound the mean completion time of the sequence of `seed`."""
    state = initial_state(settings, workload, seed)
    jobs = [
        _least_needs(workload.bank, state, number, settings.total_executors)
        for number in range(len(state.arrivals))
    ]
    arrived = float(state.arrivals[:, 0].sum())
    ends = sum(job.release + job.path for job in jobs), _srpt_sum(jobs), _busy_sum(jobs)
    return JctBounds(*((float(end) - arrived) / (1000 * len(jobs)) for end in ends))


def _least_needs(bank: JobTemplates, state: cols.SimState, number: int, executors: int) -> _Job:
    """Return the least work, chain and delay of a job of the sequence."""
    arrival, template = state.arrivals[number]
    begin, end = bank.first_stage[template], bank.first_stage[template + 1]
    levels = int((state.levels[1:, 0] + (state.levels[1:, 2] > 0)).max())
    found = np.zeros((end - begin, 3))
    least_durations(bank, state.setup[cols.SEED], number, begin, levels, found)
    work, squares, longest = found.T
    to_end = longest_to_end(bank, longest.astype(np.int64), int(begin))
    behind = to_end - longest
    length = work.sum() / executors
    delay = (squares / 2 + work * behind).sum() / work.sum()
    release = float(arrival + state.setup[cols.MOVING_MS])  # no executor belongs to a new job
    return _Job(release, float(to_end.max()), float(length), max(float(delay), length / 2))


def longest_to_end(bank: JobTemplates, durations: Ints, begin: int = 0) -> Ints:
    """(stages,) Longest chain of `durations` from each stage's start to its job's end.

    `durations` are of the stages from `begin` on, which are those of whole templates.
    """
    to_end = durations.copy()
    stages = begin + np.arange(len(durations))
    first = bank.first_stage[np.searchsorted(bank.first_stage, stages, side="right") - 1]
    for place in np.argsort(bank.height[stages], kind="stable"):  # leaves first
        stage = stages[place]
        below = first[place] + bank.child[bank.child_first[stage] : bank.child_first[stage + 1]]
        if len(below):
            to_end[place] = durations[place] + to_end[below - begin].max()
    return to_end


@compiled
def least_durations(
    bank: JobTemplates, seed: int, number: int, begin: int, levels: int, found: Floats
) -> None:
    """Sum the least durations of each stage's tasks, their squares, and find the longest.

    The draws of a task are those of the simulator; the list they pick from is any of the first
    `levels` + 1 levels and of the three waves; a stage's first task is never in the last wave.
    """
    job_key = splitmix64(seed, number)
    for index in range(len(found)):
        key, profile = splitmix64(job_key, index), begin + index
        for task in range(bank.tasks[profile]):
            bits = splitmix64(key, task) & _LOW
            least = -1
            for wave in range(2 if task == 0 else 3):
                for level in range(levels + 1):
                    count = np.uint64(bank.wave_count[profile, wave, level])
                    pick = int((bits * count) >> _S32)
                    duration = bank.durations_ms[bank.wave_first[profile, wave, level] + pick]
                    if least < 0 or duration < least:
                        least = int(duration)
            found[index, 0] += least
            found[index, 1] += least * least
            found[index, 2] = max(found[index, 2], least)


def _srpt_sum(jobs: Sequence[_Job]) -> float:
    """Sum of completion times under shortest remaining work first, optimal on one machine."""
    arriving = sorted((job.release, job.length) for job in jobs)
    waiting: list[float] = []
    now = total = 0.0
    for (release, length), (until, _) in zip(arriving, [*arriving[1:], (np.inf, 0.0)], strict=True):
        now = max(now, release)
        heapq.heappush(waiting, length)
        while waiting and now < until:
            served = min(waiting[0], until - now)
            now += served
            if served == waiting[0]:
                heapq.heappop(waiting)
                total += now
            else:
                waiting[0] -= served
    return total


def _busy_sum(jobs: Sequence[_Job]) -> float:
    """Sum of completion times by mean busy times for some jobs, by chains for the others."""
    ends = [job.release + job.path for job in jobs]
    relaxed = list(range(len(jobs)))
    means = _mean_busy_times(jobs, relaxed)
    best = sum(means[job] + jobs[job].delay for job in relaxed)
    gains = {job: ends[job] - means[job] - jobs[job].delay for job in relaxed}
    for job in sorted(relaxed, key=lambda each: -gains[each]):
        fewer = [each for each in relaxed if each != job]
        means = _mean_busy_times(jobs, fewer)
        total = sum(means[each] + jobs[each].delay for each in fewer)
        total += sum(ends[each] for each in range(len(jobs)) if each not in means)
        if total > best:
            best, relaxed = total, fewer
    return best


def _mean_busy_times(jobs: Sequence[_Job], chosen: Sequence[int]) -> dict[int, float]:
    """Mean busy time of each chosen job on the machine, the job with the least work first."""
    arriving = sorted(chosen, key=lambda job: jobs[job].release)
    left = {job: jobs[job].length for job in chosen}
    means = dict.fromkeys(chosen, 0.0)
    waiting: list[tuple[float, int]] = []
    now = 0.0
    for place, job in enumerate(arriving):
        now = max(now, jobs[job].release)
        heapq.heappush(waiting, (jobs[job].length, job))
        last = place + 1 == len(arriving)
        until = np.inf if last else jobs[arriving[place + 1]].release
        while waiting and now < until:
            first = waiting[0][1]
            served = min(left[first], until - now)
            means[first] += served * (now + served / 2) / jobs[first].length
            now += served
            left[first] -= served
            if left[first] <= 0:
                heapq.heappop(waiting)
    return means
