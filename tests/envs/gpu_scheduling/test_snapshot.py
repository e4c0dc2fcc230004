"""Loading the state of a real cluster into the simulator's tables."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.envs.gpu_scheduling import decision_state as decisions
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.baselines import FIFO
from loadmaster.envs.gpu_scheduling.cluster import build_cluster
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings, MachineGroup
from loadmaster.envs.gpu_scheduling.snapshot import ClusterSnapshot, state_from_snapshot
from loadmaster.envs.gpu_scheduling.state import SimState, new_state
from tests.envs.gpu_scheduling.instances import job, jobs_of

pytestmark = pytest.mark.slow

SETTINGS = GpuSchedulingSettings(
    machines=(MachineGroup(count=2, gpus=2, gpu="V100", cpus=8, machines_per_rack=1),),
    stragglers=0.3,
)
CLUSTER = build_cluster(SETTINGS)
# Two of one instance with half a GPU, a gang of two over both racks, and one that waits.
JOBS = jobs_of(
    [
        job(-900.0, 100.0, gpu=50),
        job(-800.0, 100.0, gpu=50, user=1),
        job(-700.0, 100.0, instances=2, comm=0.5, user=1),
        job(-600.0, 100.0, gpu=200),
    ]
)
NAN = np.nan


def load(
    speed: tuple[float, ...] = (NAN,) * 4, kept: tuple[float, ...] = (NAN, NAN)
) -> tuple[SimState, decisions.DecisionState]:
    state = new_state(SETTINGS, CLUSTER, JOBS, seed=1)
    decision = decisions.new_decision_state(SETTINGS, CLUSTER, JOBS)
    snapshot = ClusterSnapshot(
        ran_s=np.array([0.0, 40.0, 0.0, 7.0]),
        running_s=np.array([500.0, 400.0, 300.0, NAN]),
        speed=np.array(speed),
        places=np.array([[0, 0, 1], [1, 0, 1], [2, 0, 1], [2, 1, 1]]),
        running=np.array([2, 0, 1]),
        kept=np.array(kept),
    )
    state_from_snapshot(state, CLUSTER, JOBS, decision, snapshot, FIFO)
    return state, decision


def test_tables_match_snapshot() -> None:
    state, decision = load()
    assert state.clock[[cols.RUNNING, cols.QUEUED, cols.STARTS]].tolist() == [3, 1, 0]
    assert state.free.tolist() == [[0, 500], [100, 700]]
    assert state.user_use.tolist() == [[50, 100], [250, 300]]
    assert state.progress[:3, cols.PLACED_S].tolist() == [-500, -400, -300]
    assert state.progress[:, cols.RUN_S].tolist() == [0, 40, 0, 7]
    assert state.key[3] == -600
    assert decision.running[: decision.counts[decisions.RUNNING_JOBS]].tolist() == [2, 0, 1]
    # A machine lists the job placed last first.
    row = state.machines[0, cols.FIRST]
    rows = row, *(row := state.rows[row, cols.NEXT] for _ in range(2))
    assert state.rows[list(rows), cols.JOB].tolist() == [2, 1, 0]
    assert state.rows[row, cols.NEXT] == cols.NONE


def test_unmeasured_speeds_follow_model() -> None:
    """Two halves share the GPU that the gang leaves; the gang communicates across racks."""
    state, _ = load()
    assert state.progress[:3, cols.RATE] == pytest.approx([0.79, 0.79, 1 / 2.5])


def test_measured_speed_scales_row_speed() -> None:
    """Measured without co-location: the first job has half of its modelled speed."""
    state, _ = load(speed=(0.5, NAN, 0.3, NAN), kept=(1.0, NAN))
    assert state.progress[:3, cols.RATE].tolist() == [0.5, 1.0, 0.3]
    assert state.row_speed[:4] == pytest.approx([0.5, 1.0, 0.75, 0.75])
    assert state.factors[:, cols.COLOCATION].tolist() == [1.0, 1.0]
    assert state.clock[cols.CHANGES] == 2  # speeds will be updated
