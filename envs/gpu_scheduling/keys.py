"""Keys of ordering rules, and scores between groups of jobs.

The lowest key goes first. Rules that predict use finished jobs and the time a job spent on machines
so far, never its duration.
"""

import numpy as np

from loadmaster.envs.compiled import njit_inline, njit_internal
from loadmaster.envs.gpu_scheduling import baselines as rules
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.baselines import DRF, GIVEN, LAS, SJF, SRTF, TETRIS
from loadmaster.envs.gpu_scheduling.jobs import WHOLE, Jobs
from loadmaster.envs.gpu_scheduling.state import SimState

LAS_THRESHOLD_GPU_S = 18_000.0  # attained service that separates the two queues of Tiresias
_SECOND_QUEUE = 1e12  # seconds: later than every arrival, and fractions stay representable


@njit_internal
def first_key(jobs: Jobs, ordering: int, job: int) -> float:
    """Key of a job at its arrival."""
    if ordering in (SJF, SRTF, TETRIS):
        return float(jobs.duration_s[job])
    if ordering == GIVEN:
        return np.inf  # no priority was given yet
    return float(jobs.arrival_s[job])


@njit_internal
def key_now(state: SimState, jobs: Jobs, ordering: int, job: int) -> float:
    """Current key of a job that may have run before, or be running."""
    if ordering > GIVEN:
        return _tuned_key(state, jobs, ordering, job)
    if ordering == LAS:
        # 2D-LAS (Tiresias, NSDI 2019): attained service is GPUs times time; FIFO in either queue.
        attained = attained_s(state, job) * jobs.instances[job] * jobs.gpu[job] / WHOLE
        second = _SECOND_QUEUE if attained >= LAS_THRESHOLD_GPU_S else 0.0
        return second + float(jobs.arrival_s[job])
    if ordering == SRTF:
        return work_left_s(state, job)
    return first_key(jobs, ordering, job)


@njit_internal
def attained_s(state: SimState, job: int) -> float:
    """Time of a job on machines so far."""
    run_s = float(state.progress[job, cols.RUN_S])
    if state.jobs[job, cols.ROWS_USED] > 0:
        run_s += state.times[cols.NOW] - state.progress[job, cols.PLACED_S]
    return run_s


@njit_internal
def work_left_s(state: SimState, job: int) -> float:
    """Work left, in seconds at speed 1; known to oracles only."""
    running_s = state.times[cols.NOW] - state.progress[job, cols.SINCE_S]
    return float(state.progress[job, cols.LEFT_S] - running_s * state.progress[job, cols.RATE])


PRIOR_LOG_RUN = np.log1p(30.0)  # of a cluster without finished jobs: 30 minutes
PRIOR_JOBS = 2.0  # finished jobs of all users that count as much as one of the user's own


@njit_internal
def predicted_left_s(state: SimState, jobs: Jobs, job: int) -> float:
    """Predict a job's time left: its user's geometric mean, and AGE times the job's time so far.

    Run times are heavy-tailed: the longer a job has run, the longer it will.
    """
    own, everyone = state.user_history[jobs.user[job]], state.user_history[-1]
    done = everyone[cols.USER_DONE]
    mean = (everyone[cols.USER_LOG_RUN] * done + PRIOR_LOG_RUN) / (done + 1.0)
    done = own[cols.USER_DONE]
    mean = (own[cols.USER_LOG_RUN] * done + mean * PRIOR_JOBS) / (done + PRIOR_JOBS)
    return float(60.0 * np.expm1(mean) + state.rule[rules.AGE] * attained_s(state, job))


@njit_internal
def expected_left_s(state: SimState, jobs: Jobs, ordering: int, job: int) -> float:
    """Time left that a rule assumes: the true work of an oracle, else the prediction."""
    if ordering in (SRTF, rules.SRSF):
        return max(work_left_s(state, job), 1.0)
    return max(predicted_left_s(state, jobs, job), 1.0)


LEAST_RESTARTS = 2.0  # work of a run, in restarts, before the job may be stopped
_LEAST_STICK = 0.05  # likewise, as the keys of running jobs grow


@njit_internal
def has_progressed(state: SimState, job: int, restarts: float) -> bool:
    """Whether a job does not run, or did as much in its run as so many restarts lose."""
    if state.jobs[job, cols.ROWS_USED] == 0:
        return True
    run_s = state.times[cols.NOW] - state.progress[job, cols.PLACED_S]
    return bool(run_s * state.progress[job, cols.RATE] >= restarts * state.times[cols.RESTART_S])


@njit_internal
def _tuned_key(state: SimState, jobs: Jobs, ordering: int, job: int) -> float:
    """Key of the rules with parameters."""
    rule, run_s = state.rule, attained_s(state, job)
    # If waiting improves keys, jobs could stop each other before they progress.
    improves = ordering in (rules.GAVEL, rules.THEMIS, rules.SHOCKWAVE)
    improves = improves or (ordering == rules.TIRESIAS and rule[rules.PROMOTE] > 0)
    if improves and not has_progressed(state, job, LEAST_RESTARTS):
        return -np.inf
    elapsed_s = state.times[cols.NOW] - jobs.arrival_s[job]
    gpus = jobs.instances[job] * jobs.gpu[job] / WHOLE
    if ordering == rules.TIRESIAS:
        queue, limit = 0.0, rule[rules.THRESHOLD_GPU_S]
        if run_s * gpus >= limit:
            second = rule[rules.SECOND]
            queue = 2.0 if second > 0 and run_s * gpus >= limit * second else 1.0
        if rule[rules.PROMOTE] > 0 and elapsed_s - run_s > rule[rules.PROMOTE] * run_s:
            queue = 0.0
        return float(queue * _SECOND_QUEUE + jobs.arrival_s[job])
    running = state.jobs[job, cols.ROWS_USED] > 0
    kept = 1.0 - max(rule[rules.STICK], _LEAST_STICK) if running else 1.0
    if ordering == rules.SRSF:
        best = max(state.progress[job, cols.BEST_RATE], 1e-9)
        return float(work_left_s(state, job) / best * gpus ** rule[rules.SIZE] * kept)
    if ordering == rules.GAVEL:
        # Work done per second in the system, at speed 1: that of a job served all the time is 1.
        done_s = jobs.duration_s[job] - work_left_s(state, job)
        return float(done_s / max(elapsed_s, 1.0) * gpus ** rule[rules.SIZE] * kept)
    left_s = predicted_left_s(state, jobs, job)
    if ordering == rules.PREDICTED:
        return float(left_s * gpus ** rule[rules.SIZE] * kept)
    # Predicted time in the system, relative to that of a job that never waits.
    ratio = (elapsed_s + left_s) / (run_s + left_s)
    if ordering == rules.THEMIS:
        return float(-ratio / kept)
    return float(left_s * gpus ** rule[rules.SIZE] * kept / ratio ** rule[rules.FAIR])


@njit_inline
def score_of(state: SimState, jobs: Jobs, ordering: int, epsilon: float, job: int) -> float:
    """Score of a group's first job: the lowest goes first; ties by key, then by id."""
    if ordering == DRF:
        return dominant_share(state, jobs.user[job])
    if ordering == TETRIS:
        # Tetris (SIGCOMM 2014): alignment less epsilon times the work left.
        return epsilon * _work(state, jobs, job) - _alignment(state, jobs, job)
    return float(state.key[job])


@njit_internal
def dominant_share(state: SimState, user: int) -> float:
    """DRF (NSDI 2011): the larger of a user's shares of all GPUs and of all cores."""
    gpus = state.user_use[user, cols.GPU] / state.setup[cols.ALL_GPU]
    cpus = state.user_use[user, cols.CPU] / state.setup[cols.ALL_CPU]
    return max(gpus, cpus)


@njit_internal
def _alignment(state: SimState, jobs: Jobs, job: int) -> float:
    """Dot product of the gang's demands and the free resources, as shares of the cluster."""
    all_gpus, all_cpus = state.setup[cols.ALL_GPU], state.setup[cols.ALL_CPU]
    gpus = jobs.instances[job] * jobs.gpu[job] / all_gpus * state.clock[cols.FREE_GPU] / all_gpus
    cpus = jobs.instances[job] * jobs.cpu[job] / all_cpus * state.clock[cols.FREE_CPU] / all_cpus
    return gpus + cpus


@njit_internal
def _work(state: SimState, jobs: Jobs, job: int) -> float:
    """Duration of a job times its demands, as shares of the cluster."""
    gpus = jobs.gpu[job] / state.setup[cols.ALL_GPU]
    cpus = jobs.cpu[job] / state.setup[cols.ALL_CPU]
    return float(jobs.duration_s[job] * jobs.instances[job] * (gpus + cpus))


@njit_inline
def tetris_epsilon(state: SimState, jobs: Jobs) -> float:
    """Mean alignment over mean work of the pending jobs, to scale both alike."""
    aligned, work = 0.0, 0.0
    end = len(state.jobs) - 1
    job = state.jobs[end, cols.LATER]
    while job != end:
        aligned += _alignment(state, jobs, job)
        work += _work(state, jobs, job)
        job = state.jobs[job, cols.LATER]
    return aligned / max(work, 1e-12)
