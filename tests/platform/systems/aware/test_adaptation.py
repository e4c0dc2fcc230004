"""`loadmaster adapt aware`: episodes, logs, fine-tuning, and what is refused."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from loadmaster.envs.pod_scaling.episode import build_setup
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.models.aware.adaptation import FIRST_SEED, Adaptation
from loadmaster.models.aware.choice import MEMORY_FORMAT, unpack
from loadmaster.models.aware.estimates import ESTIMATE_COLUMNS
from loadmaster.models.aware.policy import AwarePolicy
from loadmaster.models.bundle import load_bundle
from loadmaster.platform.systems.aware import adaptation, fine_tuning
from loadmaster.platform.systems.aware.evaluation import run
from loadmaster.platform.systems.aware.fine_tuning import FineTuned, FineTuner, FineTuning
from loadmaster.serving.decisions.tenant_names import tenant_of
from loadmaster.serving.http.schemas import MemoryRequest
from tests.bundles import make_bundle
from tests.platform.cli.one_line import Cli, Patch
from tests.serving.client.fake_service import answer, fake_service, unused_url
from tests.serving.client.test_clients import STATUS

SMALL = {"encoder": {"kind": "gru", "hidden": 8, "layers": 1, "trajectories": 2}, "embedding": 4}
APPLICATION = "readFile+S3Write"
STEPS = "--set steps=20"
ADAPT = f"adapt aware --application {APPLICATION} {STEPS}"


@pytest.fixture
def bundle(here: Path) -> Path:
    return make_bundle(here / "mine", system="aware", **SMALL)


@pytest.mark.slow
def test_adaptation_takes_less_than_a_minute_and_a_gigabyte(tmp_path: Path) -> None:
    """In a process of its own: peak memory is that of a process, whatever ran in it before."""
    command = [sys.executable, "-m", "loadmaster.platform.cli.main", *shlex.split(ADAPT)]
    done = subprocess.run(
        [*command, "--episodes", "5", "--output", str(tmp_path / "out"), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert 0 < found["peak_mb"] < 1000
    assert 0 < found["cpu_s"] < 60


@pytest.fixture
def log(here: Path, cli: Cli) -> Path:
    cli(f"{ADAPT} --record log.parquet --episodes 3")
    return here / "log.parquet"


def test_episodes_are_compared_on_the_same_seeds(bundle: Path, cli: Cli) -> None:
    found = cli.json(f"{ADAPT} --policy mine --episodes 3 --output out")
    settings = PodScalingSettings(application=APPLICATION, steps=20)
    setup = build_setup(settings)
    seeds = range(FIRST_SEED, FIRST_SEED + 3)
    hpa = [run("hpa", settings, setup, seed).reward for seed in seeds]
    assert found["policies"]["hpa"]["reward"] == pytest.approx(np.mean(hpa))
    assert {"mine", "aware-rule", "window-peak"} <= set(found["policies"])
    assert found["parameters"]["cpu_ms"] == pytest.approx(18, rel=0.05)
    kept = [source["reward"] for source in found["trajectories"]]
    assert kept == sorted(kept, reverse=True)
    assert len(kept) == 2, "as many as the encoder reads"
    assert found["peak_mb"] > 0
    assert found["files"] == ["out/application.json"]
    written = json.loads(Path("out/application.json").read_text())
    assert written["bundle"] == {"name": "mine", "version": load_bundle(bundle).version}
    assert written["memory_format"] == MEMORY_FORMAT
    assert len(written["estimates"]) == ESTIMATE_COLUMNS
    assert any(written["embedding"])


def test_what_is_known_is_given_to_a_service(bundle: Path, cli: Cli) -> None:
    command = f"{ADAPT} --policy mine --episodes 2 --output out"
    with fake_service(answer(STATUS), answer(STATUS)) as service:
        shown = cli(f"{command} --service {service.url}").out
        cli(f"{command} --service {service.url} --tenant shop/cart --json")
        first, second = service.seen
    assert f"tenant {tenant_of(APPLICATION)} at {service.url}" in shown
    assert (first.method, first.target) == ("POST", "/v1/aware/memory")
    body = json.loads(Path("out/application.json").read_text())["service"]
    assert first.json == body
    assert second.json == {**body, "tenant": tenant_of("shop/cart")}
    request = MemoryRequest.model_validate(body)
    policy = AwarePolicy.from_bundle(load_bundle(bundle))
    assert request.version == policy.version
    packed, embedding = (
        np.array(request.memory[kind], np.float32)
        for kind in (policy.memory_format, policy.embedding_format)
    )
    known = unpack(packed, embedding, 4)
    written = json.loads(Path("out/application.json").read_text())
    np.testing.assert_allclose(known.estimates, written["estimates"], rtol=1e-12)
    np.testing.assert_allclose(known.embedding, written["embedding"], rtol=1e-6)
    assert request.episodes is not None
    best = np.reshape(request.episodes.numbers, (2, 5))
    np.testing.assert_allclose(best[:, 0], [one["reward"] for one in written["trajectories"]])
    np.testing.assert_allclose(best[:, 1:].mean(0), known.embedding, rtol=1e-5)


def test_a_service_that_refuses_or_is_down(bundle: Path, cli: Cli) -> None:
    command = f"{ADAPT} --policy mine --episodes 1 --output out"
    with fake_service(answer({"error": "memory: too long", "field": "memory"}, 422)) as service:
        assert "memory: too long" in cli.error(f"{command} --service {service.url}")
    assert "expected" in cli.error(f"{command} --service nowhere")
    assert "expected" in cli.error(f"{command} --tenant a")
    assert "expected" in cli.error(f"{ADAPT} --record log.parquet --service {unused_url()}")


def test_table_has_a_row_for_each_episode(bundle: Path, cli: Cli) -> None:
    shown = cli(f"{ADAPT} --policy mine --episodes 2").out
    rows = [line.split() for line in shown.splitlines()]
    assert [row[0] for row in rows[1:3]] == ["1", "2"]
    assert any(row[:1] == ["aware-rule"] for row in rows)
    assert "processor time" in shown
    assert Path(f"results/adapt/aware-{APPLICATION.replace('+', '-')}/application.json").is_file()


def test_log_alone_says_as_much_as_simulation(bundle: Path, log: Path, cli: Cli) -> None:
    found = cli.json(f"adapt aware --log log.parquet --policy mine {STEPS}")
    assert found["application"] == APPLICATION
    assert found["parameters"]["cpu_ms"] == pytest.approx(18, rel=0.05)
    assert [source["steps"] for source in found["trajectories"]] == [20, 20]
    assert found["policies"] == {}
    assert any(found["embedding"])


def test_logged_actions_are_zeros(log: Path) -> None:
    actions = pq.read_table(log)["action"].drop_null().to_pylist()
    assert len(actions) == 60
    assert not np.any(actions)


def changed(table: pa.Table, column: str, values: Any) -> pa.Table:
    place = table.schema.get_field_index(column)
    return table.set_column(place, table.schema.field(column), values)


def without_rewards(table: pa.Table) -> pa.Table:
    return table.drop_columns(["reward"])


def with_nan(table: pa.Table) -> pa.Table:
    rows = table["observation"].to_pylist()
    rows[4] = [float("nan"), *rows[4][1:]]
    return changed(table, "observation", pa.array(rows, table.schema.field("observation").type))


def of_two_applications(table: pa.Table) -> pa.Table:
    names = ["other" if number == 2 else APPLICATION for number in table["episode"].to_pylist()]
    return changed(table, "application", pa.array(names))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (without_rewards, "'reward'"),
        (with_nan, "step 4 are not finite"),
        (of_two_applications, "2 applications"),
    ],
)
def test_bad_logs_are_one_line(
    change: Callable[[pa.Table], pa.Table], expected: str, bundle: Path, log: Path, cli: Cli
) -> None:
    pq.write_table(change(pq.read_table(log)), "bad.parquet")
    assert expected in cli.error("adapt aware --log bad.parquet --policy mine")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--log log.parquet --set max_cpu_m=4000", "from 128 to 2048 m, logarithmic"),
        ("--log log.parquet --application sleep", f"a log of '{APPLICATION}'; expected 'sleep'"),
        ("--log log.parquet --episodes 2", "--log takes no --episodes"),
        ("--log absent.parquet", "absent.parquet does not exist"),
        ("", "no application"),
        ("--application test", "200 applications; expected one"),
        ("--application sleep --episodes 0", "--episodes is 0"),
        ("--application sleep --policy hpa", "hpa"),
        ("--application sleep --record x.parquet --rule hpaa", "hpaa"),
        ("--application sleep --set application=matMul", "disagree"),
        ("--application sleep --output /dev/null/x", "/dev/null/x"),
    ],
)
def test_bad_input_is_one_line(line: str, expected: str, bundle: Path, log: Path, cli: Cli) -> None:
    policy = "" if "--policy" in line else "--policy mine"
    assert expected in cli.error(f"adapt aware {line} {policy}")


def test_other_systems_do_not_adapt(cli: Cli) -> None:
    assert "'das' has no adaptation" in cli.error("adapt das --application sleep")


def results(*rewards: float) -> tuple[Any, ...]:
    return tuple(SimpleNamespace(reward=reward) for reward in rewards)


@pytest.mark.parametrize(("change", "kept"), [(0.01, True), (0.0, True), (-0.01, False)])
def test_worse_weights_are_not_kept(
    change: float, kept: bool, bundle: Path, cli: Cli, monkeypatch: Patch
) -> None:
    before = (1.4, 1.5, 1.3)

    def fake(found: Adaptation, *_: Any) -> FineTuned:
        after = results(*(reward + change for reward in before))
        return FineTuned(found.policy, results(1.2), results(*before), after)

    monkeypatch.setattr(fine_tuning, "fine_tune", fake)
    found = cli.json(f"{ADAPT} --policy mine --episodes 1 --fine-tune --output out")
    assert found["fine_tuning"]["kept"] is kept
    assert found["fine_tuning"]["difference"] == pytest.approx(change)
    assert Path("out/bundle/manifest.json").is_file() is kept
    if kept:
        assert load_bundle(Path("out/bundle")).trained["fine_tuned"]["application"] == APPLICATION


def test_fine_tuning_moves_the_base_learner_alone(bundle: Path) -> None:
    policy = AwarePolicy.from_bundle(load_bundle(bundle))
    settings = PodScalingSettings(application=APPLICATION, steps=20)
    setup, found = build_setup(settings), Adaptation.new(policy)
    found.run_episode(settings, setup, FIRST_SEED)
    original = {name: table.clone() for name, table in policy.network.state_dict().items()}
    learning = FineTuning(actor_start=20, minibatch=8)
    tuner = FineTuner(policy, learning)

    def moved() -> set[str]:
        now = tuner.policy.network.state_dict()
        return {name for name, table in now.items() if not torch.equal(table, original[name])}

    for expected in ({"critic"}, {"critic", "actor"}):
        _, trajectory = tuner.explore(settings, setup, FIRST_SEED + 1, found.copy())
        tuner.learn(trajectory, found.known.embedding)
        assert {name.partition(".")[0] for name in moved()} == expected
    unchanged = policy.network.state_dict()
    assert all(torch.equal(table, unchanged[name]) for name, table in original.items())
    again = FineTuner(policy, learning)
    for _ in range(2):
        _, trajectory = again.explore(settings, setup, FIRST_SEED + 1, found.copy())
        again.learn(trajectory, found.known.embedding)
    same = again.policy.network.state_dict()
    own = tuner.policy.network.state_dict()
    assert all(torch.equal(own[name], same[name]) for name in own), "by the seed alone"


def test_fine_tune_compares_on_other_seeds(bundle: Path) -> None:
    policy = AwarePolicy.from_bundle(load_bundle(bundle))
    settings = PodScalingSettings(application=APPLICATION, steps=10)
    setup, found = build_setup(settings), Adaptation.new(policy)
    found.run_episode(settings, setup, FIRST_SEED)
    learning = cast(FineTuning, FineTuning(iterations=2, minibatch=8))
    tuned = fine_tuning.fine_tune(found, settings, setup, learning, 2)
    seeds = [{each.seed for each in part} for part in (tuned.explored, tuned.before, tuned.after)]
    assert seeds[1] == seeds[2]
    assert not seeds[0] & seeds[1]
    assert FIRST_SEED not in seeds[0] | seeds[1]
    assert tuned.before[0].reward == pytest.approx(tuned.after[0].reward, abs=0.05)
    assert adaptation.JUDGED >= 20, "an interval needs seeds"
