"""The rule that SURE starts from: instances for the load of the last minutes, from observations.

As in HPA, tasks are to be busy for a share `target`. Instances are added by the newest minutes and
removed by the busiest of the last `down_min`; for some time after a restart there is no other. The
network adds its own outputs to what this rule recommends.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.stream_scaling.observation import (
    SNAPSHOT_COLUMNS,
    minutes_since_restart,
    most_instances,
)
from loadmaster.models.sure.settings import PriorSettings

Floats = NDArray[np.float32]

PARALLELISM, BUSY, IDLE, BLOCKED = map(
    SNAPSHOT_COLUMNS.index, ("parallelism", "busy", "idle", "blocked")
)
_DOWN = 0.5  # less time reported than this share of a minute: the job was down


class Prior(NamedTuple):
    """What the rule recommends: a change of each task as an action, and log-odds of acting."""

    change: Floats  # (..., N)
    gate: Floats  # (...)


def recommend(
    snapshots: Floats, tasks: Floats, restart: Floats, settings: PriorSettings, max_factor: float
) -> Prior:
    """Of observations `snapshots` (..., L, N, C), `tasks` (..., N, C) and `restart` (..., C).

    `max_factor` is the environment's: an action of 1 multiplies the parallelism by it.
    """
    most = most_instances(tasks)
    recent = snapshots[..., -settings.down_min :, :, :]
    known = recent[..., BUSY] + recent[..., IDLE] + recent[..., BLOCKED] > _DOWN  # (..., W, N)
    busy = recent[..., BUSY] * recent[..., PARALLELISM] * most[..., None, :]  # instances
    means = _moving_means(np.where(known, busy, 0), known, settings.up_min)
    count = np.maximum(np.rint(snapshots[..., -1, :, PARALLELISM] * most), 1)
    now, peak = means[..., -1, :] / settings.target, means.max(axis=-2) / settings.target
    high, low = 1 + settings.tolerance, 1 - settings.tolerance
    wanted = np.where(now > high * count, now, np.where(peak < low * count, peak, count))
    wanted = np.clip(np.ceil(wanted - 1e-4), 1, most)
    overloaded = (now * settings.target > 0.95 * count).any(-1)
    changed = (wanted != count).any(-1)
    least = np.where(overloaded, settings.urgent_min, settings.every_min)
    sign = np.where(changed & (minutes_since_restart(restart) >= least), 1.0, -1.0)
    change = np.log(wanted / count) / np.log(max_factor)
    return Prior(change.astype(np.float32), (sign * settings.log_odds).astype(np.float32))


def _moving_means(values: Floats, known: NDArray[np.bool_], window: int) -> Floats:
    """Means of the known values in the last `window` rows up to each; 0 where none is known."""

    def sums(table: Floats) -> Floats:
        total = np.cumsum(table, axis=-2)
        before = np.zeros_like(total)
        before[..., window:, :] = total[..., :-window, :]
        return total - before

    found = sums(values) / np.maximum(sums(known.astype(np.float32)), 1)
    return np.asarray(found, np.float32)
