"""The decision log of an application as a page: plans, sources, lifecycle, and what is missing."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.systems.aware.logged import recorded_log
from loadmaster.platform.systems.aware.replay import REPLAY
from loadmaster.serving.monitoring import log_files
from loadmaster.serving.monitoring.log_files import DecisionRow
from loadmaster.serving.system import Policy
from loadmaster.serving.systems.aware.schema import AwareDecision, AwareState
from loadmaster.serving.systems.aware.system import ENDPOINT, BundlePolicy
from tests.bundles import make_bundle
from tests.platform.cli.one_line import Cli
from tests.platform.systems.aware.recordings import (
    NETWORK,
    TENANT,
    logged_rows,
    untrained_policy,
)
from tests.platform.systems.decima.test_replay import data_in, numbers_in


@cache
def rows() -> tuple[DecisionRow, ...]:
    policy: Policy = BundlePolicy(untrained_policy())
    return tuple(logged_rows(policy))


def write(folder: Path, some: Any) -> Path:
    log_files.write_part(folder / "log", log_files.DECISIONS, list(some), 1)
    return folder / "log"


def test_log_has_plans_sources_and_lifecycle() -> None:
    episode = recorded_log(reversed(rows()))  # in any order
    assert episode.sources is not None
    assert episode.states is not None
    assert episode.sources.tolist() == [0] + 6 * [2] + 4 * [1] + [0, 1]
    assert episode.states.tolist() == [0] + 6 * [1] + 4 * [2] + [0, 2]
    for place, row in zip([*range(1, 11), 12], rows(), strict=True):
        made = AwareDecision.model_validate_json(row.decision)
        assert episode.replicas[place] == made.replicas
        assert episode.cores[place] == pytest.approx(made.replicas * made.cpu_m / 1000)
        assert episode.mib[place] == pytest.approx(made.replicas * made.memory_mib)


def test_outcome_of_a_decision_is_in_the_states_that_follow() -> None:
    episode = recorded_log(rows())
    last = AwareState.model_validate_json(rows()[-1].state)
    # Steps 0 to 11 ended before the last decision, also that of the decision that is missing.
    assert episode.p99_s[:12] == pytest.approx(list(last.steps.p99_s)[-12:])
    assert 60 * episode.load[:12] == pytest.approx(list(last.steps.requests)[-12:])
    assert np.isnan(episode.p99_s[12])
    assert np.isnan(episode.rewards[12])
    later = AwareState.model_validate_json(rows()[2].state)  # one step after that of row 1
    used = [each for each in later.reports.used_cpu_m[-8:-4] if each is not None]
    assert episode.used_cores[1] == pytest.approx(np.mean(used) / 1000)
    assert not np.isnan(episode.used_cores[10])
    assert episode.replicas[11] == last.plan.replicas
    known = ~np.isnan(episode.rewards)
    assert episode.figures["reward"] == pytest.approx(episode.rewards[known].mean())
    late = episode.p99_s[known] > episode.slo_s[known]
    assert episode.figures["violations"] == pytest.approx(100 * late.mean())


def test_decisions_have_reason_source_and_margins() -> None:
    trace = recorded_log(rows()).trace
    assert trace is not None
    assert trace[0].decided.startswith("rule hpa ")
    assert trace[0].decided.endswith(", because of lifecycle, lifecycle OFFLINE")
    assert trace[0].margins == ()
    assert trace[-1].decided.endswith("lifecycle ONLINE")
    assert len(trace[-1].margins) == 6
    guarded = rows()[0]._replace(guard=("bounds: replicas from 9 to 8",))
    noted = recorded_log([guarded]).trace
    assert noted is not None
    assert noted[0].notes == ("guard: bounds: replicas from 9 to 8",)


def test_summary_and_lifecycle_in_words() -> None:
    episode = recorded_log(rows())
    assert "11 decisions, 5 by the policy, 6 by the rule" in REPLAY.summary([episode])
    assert "Lifecycle: OFFLINE from 60 s, then ONLINE from 420 s." not in REPLAY.note([episode])
    assert "Lifecycle: OFFLINE from 1 min, then ONLINE from 7 min." in REPLAY.note([episode])
    old = recorded_log([row._replace(lifecycle="") for row in rows()])
    assert "Lifecycle" not in REPLAY.note([old])


def test_rows_that_cannot_be_read_are_left_out() -> None:
    damaged = rows()[3]._replace(state="{}")
    episode = recorded_log([*rows()[:3], damaged, *rows()[4:]])
    assert episode.trace is not None
    assert len(episode.trace) == len(rows()) - 1
    with pytest.raises(InputError):
        recorded_log([damaged])
    far = rows()[-1]._replace(time=rows()[0].time + 1e9)
    with pytest.raises(InputError):
        recorded_log([rows()[0], far])


def test_command_writes_page_and_picture_of_the_log(tmp_path: Path, here: Path, cli: Cli) -> None:
    bundle = make_bundle(tmp_path / "mine", system="aware", **NETWORK)
    made = logged_rows(ENDPOINT.policy(bundle))
    other = made[0]._replace(tenant="other", id="x")
    log = write(tmp_path, [*made, other])
    given = f"replay --log {log} --bundle aware={bundle}"
    record = cli.json(f"{given} -o log.html --picture log.png")
    assert (record["page"], record["picture"]) == ("log.html", "log.png")
    assert (record["replayed"], record["identical"]) == (len(made) + 1, len(made) + 1)
    assert (here / "log.png").read_bytes().startswith(b"\x89PNG")
    text = (here / "log.html").read_text()
    assert f"aware · decision log of {TENANT} · 2027-01-15T08:00:00" in text
    (policy,) = data_in(text)["policies"]
    assert set(numbers_in(policy["source"])) == {0, 1, 2}
    assert set(numbers_in(policy["state"])) == {0, 1, 2}
    assert len(policy["case"]["steps"]) == len(made)
    shown = cli(f"{given} -o one.html --tenant other").out
    assert "1 decision, 0 by the policy, 1 by the rule" in shown
    assert "12 decisions replayed: 12 identical" in shown
    assert "unknown tenant 'carts'" in cli.error(f"{given} -o no.html --tenant carts")
    assert not (here / "no.html").exists()
    assert "--tenant" in cli.error(f"{given} --tenant other")


def test_log_of_another_system_has_no_page(tmp_path: Path, here: Path, cli: Cli) -> None:
    log = write(tmp_path, [rows()[0]._replace(system="sure")])
    assert "expected some of aware" in cli.error(f"replay --log {log} -o log.html")
    assert list(here.glob("*.html")) == []


def test_log_without_the_column_is_read(tmp_path: Path) -> None:
    log = write(tmp_path, rows())
    (file,) = log.iterdir()
    pq.write_table(pq.read_table(file).drop_columns(["lifecycle"]), file)
    found = list(log_files.read_log(log))
    assert [row.id for row in found] == [row.id for row in rows()]
    assert {row.lifecycle for row in found} == {""}
