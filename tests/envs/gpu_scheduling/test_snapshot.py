"""A cluster told from outside, in the tables of the simulator."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.envs.gpu_scheduling import decision_state as on
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import MachineGroup, build_cluster
from loadmaster.envs.gpu_scheduling.decision_state import DecisionState, new_decision_state
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE
from loadmaster.envs.gpu_scheduling.rule_ids import FIFO
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.snapshot import ClusterSnapshot, state_from_snapshot
from loadmaster.envs.gpu_scheduling.state import SimState, new_state
from tests.envs.gpu_scheduling.instances import jobs_of

SETTINGS = GpuSchedulingSettings(
    machines=(MachineGroup(count=2, gpus=2, gpu="V100", cpus=8, machines_per_rack=1),),
    stragglers=0.3,
)
CLUSTER = build_cluster(SETTINGS)
# Two of one instance with half a GPU, a gang of two over both racks, and one that waits.
JOBS = jobs_of(
    [
        (-900.0, 100.0, 1, 50, 100, ANY_TYPE, 0.0, 0),
        (-800.0, 100.0, 1, 50, 100, ANY_TYPE, 0.0, 1),
        (-700.0, 100.0, 2, 100, 100, ANY_TYPE, 0.5, 1),
        (-600.0, 100.0, 1, 200, 100, ANY_TYPE, 0.0, 0),
    ]
)
NAN = np.nan


def resumed(
    speed: tuple[float, ...] = (NAN,) * 4, kept: tuple[float, ...] = (NAN, NAN)
) -> tuple[SimState, DecisionState]:
    state, desk = (
        new_state(SETTINGS, CLUSTER, JOBS, seed=1),
        new_decision_state(SETTINGS, CLUSTER, JOBS),
    )
    standing = ClusterSnapshot(
        ran_s=np.array([0.0, 40.0, 0.0, 7.0]),
        running_s=np.array([500.0, 400.0, 300.0, NAN]),
        speed=np.array(speed),
        places=np.array([[0, 0, 1], [1, 0, 1], [2, 0, 1], [2, 1, 1]]),
        running=np.array([2, 0, 1]),
        kept=np.array(kept),
    )
    state_from_snapshot(state, CLUSTER, JOBS, desk, standing, FIFO)
    return state, desk


def test_everybody_is_where_they_were_said_to_be() -> None:
    state, desk = resumed()
    assert state.clock[[at.RUNNING, at.QUEUED, at.STARTS]].tolist() == [3, 1, 0]
    assert state.free.tolist() == [[0, 500], [100, 700]]
    assert state.user_use.tolist() == [[50, 100], [250, 300]]
    assert state.progress[:3, at.PLACED_S].tolist() == [-500, -400, -300]
    assert state.progress[:, at.RUN_S].tolist() == [0, 40, 0, 7]
    assert state.key[3] == -600
    assert desk.running[: desk.counts[on.LISTED]].tolist() == [2, 0, 1]
    # The machine lists the last one first: the gang's row, then those of jobs 1 and 0.
    listed, row = [], state.machines[0, at.FIRST]
    while row != at.NONE:
        listed.append(int(state.rows[row, at.JOB]))
        row = state.rows[row, at.NEXT]
    assert listed == [2, 1, 0]


def test_speeds_are_the_model_s_without_luck() -> None:
    """Two halves share the GPU that the gang leaves them; the gang talks across racks."""
    state, _ = resumed()
    assert state.progress[:3, at.RATE] == pytest.approx([0.79, 0.79, 1 / 2.5])


def test_what_a_measured_speed_is_beyond_the_model_s_is_luck() -> None:
    """Told of a time when nobody shared: the first is half as fast as it should be there."""
    state, _ = resumed(speed=(0.5, NAN, 0.3, NAN), kept=(1.0, NAN))
    assert state.progress[:3, at.RATE].tolist() == [0.5, 1.0, 0.3]
    assert state.row_speed[:4] == pytest.approx([0.5, 1.0, 0.75, 0.75])  # undisturbed
    assert state.factors[:, at.COLOCATION].tolist() == [1.0, 1.0]
    assert state.clock[at.CHANGES] == 2  # so that speeds are settled before they are told again
