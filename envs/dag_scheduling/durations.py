"""How long a task takes: drawn from its stage's profile by wave and by executors at the job."""

from __future__ import annotations

import numpy as np

from loadmaster.envs.compiled import part
from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.jobs import FIRST, FRESH, REST, JobBank
from loadmaster.envs.dag_scheduling.state import SimState
from loadmaster.envs.hashing import mixed

_LOW = np.uint64(0xFFFFFFFF)
_S32 = np.uint64(32)


@part
def task_duration(state: SimState, bank: JobBank, executor: int, stage: int) -> int:
    """Duration in ms of the next task of `stage` on `executor`, a member of the stage's job."""
    profile = state.stages[stage, at.PROFILE]
    bits = mixed(state.stages[stage, at.LUCK], state.stages[stage, at.STARTED])
    held = state.jobs[state.executors[executor, at.JOB], at.MEMBERS]
    level, above, gap = state.levels[held, 0], state.levels[held, 1], state.levels[held, 2]
    if gap > 0:
        # Between two measured levels the nearer one is the likelier. The published simulator has
        # it the wrong way round, which cross-checks against it need.
        point = int(((bits >> _S32) * np.uint64(gap)) >> _S32)
        from_below = point < above if state.setup[at.AS_PUBLISHED] else point >= above
        if not from_below:
            level += 1
    last = state.executors[executor, at.LAST]
    wave = FRESH if last == at.NONE else (REST if last == stage else FIRST)
    pick = int(((bits & _LOW) * np.uint64(bank.wave_count[profile, wave, level])) >> _S32)
    duration = int(bank.durations_ms[bank.wave_first[profile, wave, level] + pick])
    if wave == FRESH and bank.cold_start[profile, level]:
        duration += state.setup[at.WARMUP_MS]
    return duration
