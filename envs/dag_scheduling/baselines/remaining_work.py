"""Heuristics that serve the job with the least work left first, up to a cap on its executors.

Three rules differ in the cap. With a few executors per job each task runs faster, and with the
least work left first the mean completion time is lowest; the caps balance both.

- `srpt-caps`: scale * (work left)^alpha * (executors / jobs)^share. The mean completion time of
  jobs with work w on w^0.5-like shares is near its least, so alpha is about 0.45.
- `hesrpt` (Berg, Vesilo and Harchol-Balter, SIGMETRICS 2020): the optimum for known work and a
  speedup of k^p on k executors. The i-th of n jobs, the one with the most work left first, has the
  share (i/n)^x - ((i-1)/n)^x with x = 1 / (1 - p).
- `carbyne` (Grandl et al., OSDI 2016, simplified): fair shares. A job yields the executors that it
  does not need to end at its critical path's length (`altruism` times that many are kept), and the
  job with the least work left takes them.

`stay` lowers the logarithm of the work left of the job that the free executors belong to, since a
move takes time. Within a job the stage with the longest critical path goes first; `path` also
weighs the path between jobs. `spill`: executors that no job below its cap can use go beyond it.
"""

import numpy as np

from loadmaster.envs.compiled import njit_inline, njit_internal
from loadmaster.envs.dag_scheduling import baselines as rules
from loadmaster.envs.dag_scheduling import observation as obs
from loadmaster.envs.dag_scheduling.observation import Observation

LEAST_S = 1e-3  # of work or path, where a logarithm is taken
TOLERANCE = 1e-9  # before caps are rounded up: keeps 50 * (1 / 5) at 10, not at 11


@njit_internal
def waiting_jobs(view: Observation) -> int:
    """Count the jobs that have unassigned tasks."""
    count = 0
    for job in range(int(view.cluster[obs.JOBS])):
        count += view.jobs[job, obs.UNPLACED] > 0
    return max(count, 1)


@njit_internal
def hesrpt_share(view: Observation, job: int, waiting: int, speedup: float) -> float:
    """Return theta_i of heSRPT; i counts the waiting jobs with more work left, and this one."""
    place, left = 1, view.jobs[job, obs.WORK_LEFT_S]
    for other in range(int(view.cluster[obs.JOBS])):
        if other != job and view.jobs[other, obs.UNPLACED] > 0:
            more = view.jobs[other, obs.WORK_LEFT_S]
            place += more > left or (more == left and other > job)
    power = 1.0 / (1.0 - speedup)
    return float((place / waiting) ** power - ((place - 1) / waiting) ** power)


@njit_internal
def longest_path_s(view: Observation, first_row: int) -> float:
    """Return the longest critical path of the job whose rows start at `first_row`."""
    longest, row = 0.0, first_row
    while row < int(view.cluster[obs.STAGES]) and view.stage_job[row] == view.stage_job[first_row]:
        longest = max(longest, view.stages[row, obs.CRITICAL_S])
        row += 1
    return longest


@njit_internal
def cap_of(
    view: Observation, job: int, row: int, waiting: int, rule: int, values: tuple[float, ...]
) -> int:
    """Return the most executors the job may hold; `row` is the first row of the job."""
    total = float(view.cluster[obs.TOTAL_EXECUTORS])
    left = max(float(view.jobs[job, obs.WORK_LEFT_S]), LEAST_S)
    if rule == rules.HESRPT:
        cap = total * hesrpt_share(view, job, waiting, values[rules.SPEEDUP])
    elif rule == rules.CARBYNE:
        needed = left / max(longest_path_s(view, row), LEAST_S)
        cap = min(total / waiting, values[rules.ALTRUISM] * needed)
    else:
        even = (total / waiting) ** values[rules.SHARE]
        cap = values[rules.SCALE] * left ** values[rules.ALPHA] * even
    return int(np.ceil(min(cap, total) - TOLERANCE))


@njit_internal
def held_elsewhere(view: Observation, job: int) -> int:
    """Count the executors of the job without the free ones."""
    own = view.jobs[job, obs.IS_SOURCE] == 1
    return int(view.jobs[job, obs.EXECUTORS]) - (int(view.cluster[obs.FREE_EXECUTORS]) * own)


@njit_internal
def job_key(view: Observation, job: int, values: tuple[float, ...]) -> float:
    """Return the logarithm of the work left, less `stay` for the job of the free executors."""
    key = np.log(max(float(view.jobs[job, obs.WORK_LEFT_S]), LEAST_S))
    return float(key - values[rules.STAY] * (view.jobs[job, obs.IS_SOURCE] == 1))


@njit_internal
def stage_key(view: Observation, row: int, own_key: float, values: tuple[float, ...]) -> float:
    """Return what the stage is ordered by, the least first; `own_key` is that of its job."""
    path = max(float(view.stages[row, obs.CRITICAL_S]), LEAST_S)
    return float(own_key - values[rules.PATH] * np.log(path))


@njit_inline
def least_work_left(view: Observation, rule: int, values: tuple[float, ...]) -> tuple[int, int]:
    """Choose the stage of the job with the least work left below its cap; else spill or idle."""
    free, waiting = int(view.cluster[obs.FREE_EXECUTORS]), waiting_jobs(view)
    idle = len(view.schedulable) - 1
    spill = rule == rules.CARBYNE or values[rules.SPILL] > 0 or view.schedulable[idle] == 0
    best, best_key, best_path, granted = -1, np.inf, 0.0, 0
    beyond, beyond_key, beyond_path = -1, np.inf, 0.0
    job, own_key, quota = -1, 0.0, 0
    for row in range(int(view.cluster[obs.STAGES])):
        if view.stage_job[row] != job:  # rows are sorted by job
            job = view.stage_job[row]
            cap = cap_of(view, job, row, waiting, rule, values)
            quota = min(free, cap - held_elsewhere(view, job))
            own_key = job_key(view, job, values)
        if view.schedulable[row] == 0:
            continue
        path = float(view.stages[row, obs.CRITICAL_S])
        key = stage_key(view, row, own_key, values)
        if quota > 0 and (key < best_key or (key == best_key and path > best_path)):
            best, best_key, best_path, granted = row, key, path, quota
        if spill and (key < beyond_key or (key == beyond_key and path > beyond_path)):
            beyond, beyond_key, beyond_path = row, key, path
    if best == -1:
        best, granted = beyond, free
    if best == -1:
        return idle, 1
    return best, int(view.jobs[view.stage_job[best], obs.MIN_LIMIT]) - 1 + granted
