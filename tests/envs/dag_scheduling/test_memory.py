"""Memory follows the jobs in the system, not the jobs of the episode."""

from __future__ import annotations

import tracemalloc

from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.baselines import BASELINES
from loadmaster.envs.dag_scheduling.rollout import initial_state, run_baseline
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.state import DONE, HORIZON
from loadmaster.envs.dag_scheduling.workloads import load_workload
from tests.envs.dag_scheduling.cluster import NO_HORIZON


def test_ten_thousand_jobs_need_no_more_room_than_the_first_thousand() -> None:
    settings = DagSchedulingSettings(arrivals="poisson", jobs=10_000, interarrival_s=25)
    workload = load_workload(settings)
    tracemalloc.start()  # numpy reports its arrays, and compiled code allocates nothing else
    try:
        state = initial_state(settings, workload, seed=0)
        state.setup[cols.HORIZON_MS] = state.arrivals[1000, 0]
        state = run_baseline(state, workload.bank, BASELINES["fair"])
        assert state.clock[cols.STATUS] == HORIZON
        assert 950 < state.clock[cols.FINISHED_JOBS] <= 1000
        sizes = [table.nbytes for table in state]
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()

        state.setup[cols.HORIZON_MS] = NO_HORIZON
        state = run_baseline(state, workload.bank, BASELINES["fair"])
        assert state.clock[cols.STATUS] == DONE
        assert state.clock[cols.FINISHED_JOBS] == 10_001
        assert [table.nbytes for table in state] == sizes
        _, peak = tracemalloc.get_traced_memory()
        assert peak - taken < 100_000  # the observation's tables; each job would have taken more
    finally:
        tracemalloc.stop()
