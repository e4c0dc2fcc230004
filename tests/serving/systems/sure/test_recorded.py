"""Retraining input from logged states: the environment gets the recorded job and its load."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loadmaster.envs.settings import build_settings
from loadmaster.envs.stream_scaling.actions import HOLD
from loadmaster.envs.stream_scaling.episode import Setup, build_setup
from loadmaster.envs.stream_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.stream_scaling.jobs import Job, build_job, job_tables
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.envs.stream_scaling.state import MINUTE
from loadmaster.serving.monitoring.log_files import DECISIONS, DecisionRow, write_part
from loadmaster.serving.policies.logged_states import LoggedStates
from loadmaster.serving.systems.sure.recorded import recorded_input
from loadmaster.serving.systems.sure.schema import SureState
from loadmaster.serving.systems.sure.system import ENDPOINT
from tests.serving.systems.sure import jobs

START = 1_767_571_200.0  # Monday 2026-01-05, 00:00 UTC
SETTINGS = StreamScalingSettings(job="small-1", metric_noise=0.0, contention=0.0, initial=8)


def job_with_ratios() -> Job:
    """A generated job whose edges do not all carry the same share."""
    tasks = build_setup(SETTINGS).job.tasks
    return build_job(
        "own",
        [replace(task, selectivity=(0.4,) * len(task.parents) or None) for task in tasks],
    )


def episode(job: Job, hours: int) -> tuple[EpisodeRunner, list[tuple[float, SureState]]]:
    """An episode without decisions, with the states of every half hour as a client sends them."""
    tables = job_tables(job, SETTINGS.max_parallelism)
    runner = EpisodeRunner(SETTINGS, Setup(job, tables, build_setup(SETTINGS).load), 3)
    hold, states = np.full(1 + len(job.tasks), HOLD, np.float32), []
    for step in range(12 * hours):
        if step % 6 == 0:
            time = START + 60 * float(runner.episode.state.clock[MINUTE] - 1)
            states.append((time, jobs.sent(runner)))
        runner.decide(hold)
    return runner, states


def test_the_environment_has_the_recorded_job_and_load(tmp_path: Path) -> None:
    job = job_with_ratios()
    runner, states = episode(job, 4)
    found = recorded_input(states)
    assert found is not None
    for name, content in found.files.items():
        (tmp_path / name).write_text(content)
    values = {
        name.removeprefix("environment."): str(tmp_path / value) if value in found.files else value
        for name, value in found.settings.items()
        if name.startswith("environment.")
    }
    assert found.settings["jobs"] == [found.settings["environment.job"]]
    settings = build_settings(StreamScalingSettings, values)
    setup, own = build_setup(settings), runner.setup.tables
    assert setup.job.names == job.names
    assert setup.job.edges == job.edges
    np.testing.assert_array_equal(setup.tables.cap, own.cap)
    np.testing.assert_array_equal(setup.tables.chain, own.chain)
    counts = setup.load.counts * settings.load_scale  # type: ignore[attr-defined]
    given = runner.episode.state.load[0, : len(counts)]
    assert len(counts) == round((states[-1][0] - START) / 60) + 1
    # Instances that the load needs, of every task and minute.
    needed = np.outer(counts, setup.tables.nominal * setup.tables.service_min)
    expected = np.outer(given, own.nominal * own.service_min)
    np.testing.assert_allclose(needed, expected, rtol=0.03, atol=0.01)
    assert setup.load.first_minute == 0  # type: ignore[attr-defined]


def test_a_short_or_empty_log_gives_nothing() -> None:
    _, states = episode(build_setup(SETTINGS).job, 1)
    assert recorded_input([]) is None
    assert recorded_input(states[:1]) is None


@pytest.mark.parametrize("tenant", ["default", "other"])
def test_states_are_read_from_the_log(tmp_path: Path, tenant: str) -> None:
    _, states = episode(build_setup(SETTINGS).job, 2)
    row = DecisionRow(
        id="1", time=0.0, system="sure", mode="active", source="policy", cause=None, policy="p",
        version="1", state="{}", decision="{}", shadow=None, reason="{}", guard=(), latency_ms=1.0,
    )  # fmt: skip
    rows = [row._replace(time=START - 60)]  # a state that is not valid
    rows += [row._replace(time=time, state=state.model_dump_json()) for time, state in states]
    write_part(tmp_path, DECISIONS, rows, 1)
    log = LoggedStates(ENDPOINT, tmp_path)
    found = log.recorded(tenant, START + 86_400)
    assert found == (recorded_input(states) if tenant == "default" else None)
    assert LoggedStates(ENDPOINT, tmp_path / "none").recorded(tenant, START) is None
