"""States in the environment's tables: observations equal those of the simulated episode."""

from itertools import islice
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.gpu_scheduling import features, observation
from loadmaster.envs.gpu_scheduling.baselines import FIFO, GIVEN, LAS, PREDICTED
from loadmaster.envs.gpu_scheduling.decision_state import KEYED, PHASE, SHOWN
from loadmaster.envs.gpu_scheduling.keys import LAS_THRESHOLD_GPU_S
from loadmaster.envs.gpu_scheduling.observation import Observation, blank_observation
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.state import RATE
from loadmaster.models.das.decision import ClusterTables
from loadmaster.serving.systems.das.schema import DasState
from loadmaster.serving.systems.das.snapshot import tables_of
from tests.serving.systems.das.clusters import job, machine
from tests.serving.systems.das.episodes import PRETRAINED, Episode

pytestmark = pytest.mark.slow

SETTINGS = GpuSchedulingSettings(preempt=True, max_queue=16, history=4)


def view_of(tables: ClusterTables, settings: GpuSchedulingSettings = SETTINGS) -> Observation:
    view = blank_observation(settings.max_queue, tables.cluster, settings.history)
    assert observation.observe_if_decision(*tables.simulation, view)
    return view


@pytest.mark.parametrize(("rows", "backfill"), [(64, True), (12, False)])
def test_observation_equals_episode_exactly(rows: int, backfill: bool) -> None:
    """Also with more jobs than rows."""
    changes = {"max_queue": rows, "backfill": backfill, "durations": "known"}
    episode, crowded = Episode(PRETRAINED / "das-small", seed=5, **changes), 0
    for _ in range(300):
        received = DasState.model_validate_json(episode.next_state().model_dump_json())
        counts = episode.runner.decision_state.counts
        tables = tables_of(received, episode.settings, GIVEN)
        view = view_of(tables, episode.settings)
        loaded = tables.decision_state.counts[[SHOWN, PHASE]]
        assert loaded.tolist() == counts[[SHOWN, PHASE]].tolist()
        for name, table in episode.runner.view._asdict().items():
            np.testing.assert_array_equal(getattr(view, name), table, err_msg=name)
        crowded += len(received.jobs) > rows
        episode.act()
    assert crowded > 50 or rows == 64


def small(**changes: Any) -> dict[str, Any]:
    """Two machines of four V100s; one job shares GPUs of the first, another waits."""
    shares = job("shares", 0.5, 900, {"a": 5}, instances=5, running_s=300)
    machines = [machine("a", rack="left"), machine("b", rack="right")]
    return {"machines": machines, "jobs": [shares, job("waits")], **changes}


def tables_from(state: dict[str, Any], ordering: int = GIVEN) -> ClusterTables:
    return tables_of(DasState.model_validate(state), SETTINGS, ordering)


def test_measured_speed_is_rescaled_when_neighbours_change() -> None:
    state = small()
    state["jobs"][0]["speed"] = 0.5
    state["machines"][0]["kept_speed"] = 1.0
    tables = tables_from({**state, "ask": "reconsidering"})
    assert tables.state.progress[0, RATE] == 0.5
    view = view_of(tables)  # before it is reconsidered, its speed is brought up to date
    assert tables.state.progress[0, RATE] == pytest.approx(0.5 * view.machines[0, features.KEPT])


def test_unknown_gpu_type_uses_given_speed_and_price() -> None:
    state = small()
    state["machines"].append(machine("c", 2, "H900", speed=9, price_per_hour=7.2))
    state["jobs"].append(job("picky", gpu_type="H900", age_s=5))
    view = view_of(tables_from(state))
    assert view.machines[2, [features.SPEED, features.PRICE]].tolist() == pytest.approx([9, 7.2])
    assert (view.held[:2] > 0).tolist() == [[True, True, True], [False, False, True]]


def test_jobs_are_numbered_by_arrival() -> None:
    state = small()
    state["jobs"].reverse()
    tables = tables_from(state)
    assert [tables.job_name(job) for job in (0, 1)] == ["shares", "waits"]


def test_history_skips_unknown_machines() -> None:
    notes = [{"age_s": 10 * age, "speeds": {"b": age / 10, "gone": 1.0}} for age in range(1, 7)]
    view = view_of(tables_from(small(history=notes)))
    assert view.history_t.tolist() == [0, 10, 20, 30]  # the first is now
    assert view.history_y[:, 1].tolist() == pytest.approx([0, 0.1, 0.2, 0.3])
    assert view.history_mask.tolist() == [[True, False], *[[False, True]] * 3]


def test_users_and_attained_service_are_loaded() -> None:
    state = small(users={"": {"jobs": 3, "mean_log_minutes": 2.5}})
    state["jobs"][1]["ran_s"] = 2 * LAS_THRESHOLD_GPU_S
    tables = tables_from(state)
    seen = view_of(tables).jobs[0]
    assert seen[features.USER_DONE] == pytest.approx(np.log1p(3))
    assert seen[features.USER_RUN] == pytest.approx(2.5)
    assert seen[features.BEYOND] > 0
    assert tables.state.key[1] == np.inf  # until a policy sets it
    assert tables_from(state, FIFO).state.key[1] == -60
    assert tables_from(state, LAS).state.key[1] > 1e11  # in the second queue


def test_ranks_are_loaded() -> None:
    """A job without correction is new, and so are those after it."""
    runs = job("runs", 1, 900, {"a": 1}, running_s=30)
    state = small(jobs=[runs, job("x", age_s=300), job("y", age_s=200), job("z", age_s=100)])
    ranks = {"runs": (3, -1), "x": (5, 0.5), "y": (7, None), "z": (9, 1), "finished": (1, 1)}
    state["ranks"] = {
        name: dict(zip(("key", "correction"), one, strict=True)) for name, one in ranks.items()
    }
    tables = tables_from(state, PREDICTED)
    assert tables.state.key.tolist() == pytest.approx([3, 5, 7, 9 * np.e])
    assert tables.decision_state.start_priority.tolist() == [-1, 0.5, 0, 1]
    assert tables.decision_state.counts[KEYED] == 2
    del state["ranks"]["y"]
    assert tables_from(state, PREDICTED).state.key[2] > 0
    assert tables_from(state).state.key[1:].tolist() == [np.inf] * 3  # agents have no such keys
    state["ranks"]["y"] = {"key": 7, "correction": 0}
    assert tables_from(state, PREDICTED).decision_state.counts[KEYED] == 4


def test_all_users_count_in_predictions() -> None:
    users = {"": {"jobs": 3, "mean_log_minutes": 2.5}, "gone": {"jobs": 1, "mean_log_minutes": 0.5}}
    history = tables_from(small(users=users)).state.user_history
    assert history[-1, :2].tolist() == [4, 2.0]
    everyone = {"jobs": 50, "mean_log_minutes": 4.5}
    history = tables_from(small(users=users, all_users=everyone)).state.user_history
    assert history[:, :2].tolist() == [[3, 2.5], [50, 4.5]]


def test_recorded_states_contain_no_future() -> None:
    episode = Episode(PRETRAINED / "das-small", seed=6)
    states = [seen.asked for seen in islice(episode.moments(), 80)]
    assert all(job.duration_s is None for state in states for job in state.jobs)
    assert any(job.placements and job.speed for state in states for job in state.jobs)
    assert any(state.users for state in states)
    assert any(len(state.history) > 4 for state in states)
