"""How large a state may be: what a decision can take time and memory for, and no more."""

from __future__ import annotations

JOBS_MAX = 1_000
JOB_STAGES_MAX = 1_000
STAGES_MAX = 20_000  # of all jobs
EDGES_MAX = 100_000
CLASSES_MAX = 64
EXECUTORS_MAX = 10_000
TASKS_MAX = 1_000_000  # of a stage
TASK_MS_MAX = 2**31 - 1
ROUND_MAX = 256  # decisions in one answer; what is free beyond them is undecided
