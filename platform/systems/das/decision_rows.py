"""A case study made small enough to travel inside a page; `script/gpu_scheduling/decisions.js` is
the way back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling import decision_state as on
from loadmaster.platform.replay.adapters import pack
from loadmaster.platform.systems.das.decision_trace import CaseStudy, Place, Step, abridged

KINDS = {on.PLACING: "placing", on.RECONSIDERING: "reconsidering", on.PLACING_AGAIN: "again"}
LEVELS = 4000  # of a number between the lowest and the highest of its kind


def case_data(case: CaseStudy) -> dict[str, Any]:
    steps = abridged(case)
    return {
        "decisions": case.decisions,
        "choices": len(case.steps),
        "steps": [_step_data(step) for step in steps],
    }


def _step_data(step: Step) -> dict[str, Any]:
    return {
        "number": step.number,
        "time_s": round(step.time_s, 3),
        "kind": KINDS[step.kind],
        "jobs": pack(step.jobs),
        "order": pack(step.order.astype(np.int64)),
        "attained_s": pack(np.rint(step.attained_s).astype(np.int64)),
        "mean": _levels(step.mean),
        "std": _levels(step.std),
        "flags": pack(step.heeded + 2 * step.running.astype(np.int64)),
        "free": pack(step.free),
        "startable": pack(step.startable.astype(np.int64)),
        "affinity": _levels(step.affinity.ravel()),  # row by row
        "held": _places(step.held),
        "placed": _places(step.placed),
        "stopped": list(step.stopped),
        "then": _places(step.then),
    }


def _places(places: tuple[Place, ...]) -> str:
    return pack(np.array(places, np.int64).reshape(-1))


def _levels(values: NDArray[np.float32]) -> dict[str, Any]:
    """Level n is low + (n - 1) * step; 0 is nan."""
    known = ~np.isnan(values)
    if not known.any():
        return {"low": 0, "step": 0, "levels": pack(np.zeros(len(values), np.int64))}
    low, high = round(float(values[known].min()), 6), float(values[known].max())
    step = max(float(f"{(high - low) / LEVELS:.6g}"), 1e-6)
    above = np.rint((np.where(known, values, low) - low) / step)
    levels = np.where(known, 1 + np.maximum(above, 0), 0)  # low may have been rounded up
    return {"low": low, "step": step, "levels": pack(levels.astype(np.int64))}
