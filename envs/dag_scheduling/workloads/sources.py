"""Where imported traces lie, and what they leave unsaid."""

from __future__ import annotations

import hashlib
from pathlib import Path

from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.traces import trace_path


def data_path(settings: DagSchedulingSettings) -> Path:
    """The folder (or file) of traces that the user named."""
    return trace_path(settings.workload, settings.data)


def stage_memory(job: str, stage: int) -> float:
    """The memory demand of a stage whose profile tells none: uniform in (0, 1], the same for ever.

    A hash rather than a generator: it does not depend on which other jobs were loaded, or when.
    """
    digest = hashlib.sha256(f"{job}/{stage}".encode()).digest()
    return (int.from_bytes(digest[:4], "big") + 1) / 2**32
