"""The inputs of `features.py` as compiled functions, for one observation at a time."""

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import njit_internal
from loadmaster.envs.dag_scheduling import observation as obs_cols
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.models.decima import features
from loadmaster.models.layers import Array32

# Scales of features.py as float32.
_EXECUTOR, _TASK = np.float32(features.PER_EXECUTOR), np.float32(features.PER_TASK)
_LOG_S, _LOG_COUNT = np.float32(features.PER_LOG_S), np.float32(features.PER_LOG_COUNT)
_WORK, _JOB_WORK = np.float32(features.PER_WORK_S), np.float32(features.PER_JOB_WORK_S)
_DURATION = np.float32(features.PER_DURATION_S)
_SOURCE, _NOT_SOURCE = np.float32(features.SOURCE), np.float32(features.NOT_SOURCE)
_ONE = np.float32(1)


@njit_internal
def read_jobs(view: Observation, inputs: Array32, first: int) -> None:
    """Write the inputs of all jobs, in columns from `first` on."""
    free = view.cluster[obs_cols.FREE_EXECUTORS] * _EXECUTOR
    log_jobs = np.log1p(view.cluster[obs_cols.JOBS]) * _LOG_COUNT
    for job in range(int(view.cluster[obs_cols.JOBS])):
        column, own = first + job, view.jobs[job, obs_cols.IS_SOURCE] == 1
        inputs[0, column] = view.jobs[job, obs_cols.EXECUTORS] * _EXECUTOR
        inputs[1, column] = _SOURCE if own else _NOT_SOURCE
        inputs[2, column] = free
        work = view.jobs[job, obs_cols.WORK_LEFT_S]
        inputs[3, column] = np.log1p(work) * _LOG_S
        inputs[4, column] = np.log1p(view.jobs[job, obs_cols.EXECUTORS]) * _LOG_COUNT
        inputs[5, column] = log_jobs
        inputs[6, column] = work * _JOB_WORK


@njit_internal
def read_stages(
    view: Observation,
    columns: NDArray[np.int64],
    job_inputs: Array32,
    first_job: int,
    inputs: Array32,
) -> None:
    """Write the inputs of all stages into their `columns`; `first_job` is the jobs' offset."""
    for row in range(int(view.cluster[obs_cols.STAGES])):
        column, stage = columns[row], view.stages[row]
        for shared in range(features.SHARED):
            inputs[shared, column] = job_inputs[shared, first_job + view.stage_job[row]]
        inputs[6, column] = stage[obs_cols.UNSTARTED] * stage[obs_cols.MEAN_S] * _WORK
        inputs[7, column] = stage[obs_cols.UNSTARTED] * _TASK
        inputs[8, column] = stage[obs_cols.MEAN_S] * _DURATION
        inputs[features.LONGEST_PATH, column] = np.log1p(stage[obs_cols.CRITICAL_S]) * _LOG_S
        inputs[10, column] = stage[obs_cols.RUNNING] * _EXECUTOR
        inputs[11, column] = stage[obs_cols.RUNNABLE]
        inputs[12, column] = stage[obs_cols.FITTING] * _EXECUTOR
        inputs[13, column] = (
            _ONE - stage[obs_cols.FITTING_TOTAL] / view.cluster[obs_cols.TOTAL_EXECUTORS]
        )
