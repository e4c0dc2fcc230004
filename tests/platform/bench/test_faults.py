"""A training under random kills: the schedule, the checks on fabricated histories, a short run."""

import csv
import json
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.bench import fault_cluster, fault_injection, faults
from loadmaster.platform.bench.faults import KINDS, QUIET_END, Faults, Kill, Row, Seen
from loadmaster.platform.ray.head import LOG, SEVERAL_NODES
from tests.platform.cli.one_line import Captured, Cli, Patch

ITERATIONS = 9


@pytest.mark.parametrize("kills", [1, 3, 20])
def test_schedule_depends_on_the_seed_only(kills: int) -> None:
    iterations = 2 * kills + QUIET_END
    plan = faults.schedule(1, kills, iterations)
    assert plan == faults.schedule(1, kills, iterations)
    assert plan != faults.schedule(2, kills, iterations)
    places = [planned.iteration for planned in plan]
    assert places == sorted(set(places))
    assert 1 <= places[0] <= places[-1] <= iterations - QUIET_END
    counts = Counter(planned.kind for planned in plan)
    assert max(counts.values()) - min(counts[kind] for kind in KINDS) <= 1
    assert all(0 <= fraction < 1 for planned in plan for fraction in planned[2:])


def rows(iterations: Sequence[int] = range(ITERATIONS + 1), seconds: float = 1.0) -> list[Row]:
    return [
        {"iteration": float(each), "seconds": seconds, "validation": 90.0 - each, "rollouts": 6.0}
        for each in iterations
    ]


def seen_run() -> list[Seen]:
    """A worker is killed at 2.5 s, the driver at 5.5 s after the checkpoint of iteration 4."""
    return [
        *(Seen(float(each), each, 2.0, ()) for each in (0, 1, 2)),
        Seen(4.0, 3, 1.0, ()),
        Seen(4.5, 4, 2.0, ()),
        Seen(5.0, 5, 2.0, ()),
        Seen(20.0, 4, 2.0, ()),  # its rows are dropped before the manifest is written
        Seen(20.1, 4, 2.0, (4,)),
        *(Seen(16.0 + each, each, 2.0, (4,)) for each in range(5, ITERATIONS + 1)),
    ]


def fabricated(**changed: Any) -> Faults:
    """A run that passes every check, but for what is changed."""
    kills = [Kill(1, "worker", 2.5, 2, 0, 1), Kill(2, "driver", 5.5, 5, 4, 0)]
    found = Faults(
        iterations=ITERATIONS,
        workers=2,
        planned=2,
        kills=tuple(faults.with_consequences(kills, seen_run(), 2)),
        seen=tuple(seen_run()),
        rows=tuple(rows()),
        exit_code=0,
        bundle_iterations=ITERATIONS,
        undisturbed=tuple(rows(seconds=3.0)),
        undisturbed_s=30.0,
    )
    return replace(found, **changed)


def test_consequences_of_kills() -> None:
    worker, driver = fabricated().kills
    assert (worker.resumes, worker.went_on_from, worker.repeated) == (0, 2, 0)
    assert (worker.recovery_s, worker.all_workers_s) == (1.5, 2.0)
    assert (driver.resumes, driver.went_on_from, driver.repeated) == (1, 4, 1)
    assert (driver.recovery_s, driver.all_workers_s) == (15.5, 15.5)


def test_rows_of_before_a_kill_are_no_progress() -> None:
    """The files keep what a killed driver wrote, until it is resumed."""
    driver = fabricated().kills[1]
    later = [one for one in seen_run() if one.second > driver.second]
    assert faults.recovered(driver, (), later[:2]) is None
    assert faults.recovered(driver, (), later) == later[2]


def with_kill(number: int, **changed: Any) -> tuple[Kill, ...]:
    kills = list(fabricated().kills)
    kills[number - 1] = replace(kills[number - 1], **changed)
    return tuple(kills)


def with_value(place: int, **values: float) -> tuple[Row, ...]:
    return tuple({**row, **(values if row["iteration"] == place else {})} for row in rows())


def test_whole_run_passes_every_check() -> None:
    checks = faults.checks_of(fabricated())
    assert [check for check in checks if not check.holds] == []
    other = with_value(3, validation=1.0)  # after the first worker was killed
    assert all(check.holds for check in faults.checks_of(fabricated(rows=other)))


@pytest.mark.parametrize(
    ("failing", "change"),
    [
        ("iterations", lambda: {"rows": tuple(rows([0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9]))}),
        ("iterations", lambda: {"rows": tuple(rows([0, 1, 2, 4, 5, 6, 7, 8, 9]))}),
        ("iterations", lambda: {"rows": tuple(rows([0, 1, 2, 4, 3, 5, 6, 7, 8, 9]))}),
        ("iterations", lambda: {"rows": tuple(rows(range(ITERATIONS)))}),
        ("iterations", lambda: {"rows": ()}),
        ("driver kills", lambda: {"kills": with_kill(2, went_on_from=0, repeated=5)}),
        ("driver kills", lambda: {"kills": with_kill(2, resumes=2)}),
        ("driver kills", lambda: {"kills": with_kill(2, resumes=0)}),
        ("worker and node kills", lambda: {"kills": with_kill(1, resumes=1)}),
        ("worker and node kills", lambda: {"kills": with_kill(1, went_on_from=0)}),
        ("worker and node kills", lambda: {"kills": with_kill(1, kind="node", went_on_from=None)}),
        ("kills", lambda: {"planned": 3}),
        ("kills", lambda: {"kills": with_kill(2, recovery_s=None)}),
        ("kills", lambda: {"exit_code": 1}),
        ("kills", lambda: {"exit_code": None}),
        ("workers", lambda: {"seen": tuple(one._replace(workers=1.0) for one in seen_run())}),
        ("final bundle", lambda: {"bundle_iterations": ITERATIONS - 1}),
        ("final bundle", lambda: {"bundle_iterations": "InputError: damaged"}),
        ("undisturbed run", lambda: {"undisturbed": tuple(rows(range(ITERATIONS)))}),
        ("undisturbed run", lambda: {"rows": with_value(2, validation=1.0)}),
    ],
)
def test_each_loss_fails_its_check(failing: str, change: Callable[[], dict[str, Any]]) -> None:
    found = fabricated(**change())
    assert failing in [check.name for check in faults.checks_of(found) if not check.holds]
    assert faults.summary_of(found, {})["holds"] is False


def test_resume_from_too_early_is_noticed() -> None:
    """The checkpoint of iteration 4 is there, and the training goes on from that of 0."""
    early = [
        one._replace(resumed=(0,), iteration=one.iteration - 4) if one.resumed else one
        for one in seen_run()
    ]
    kills = faults.with_consequences(fabricated().kills, early, 2)
    assert (kills[1].went_on_from, kills[1].repeated) == (0, 5)
    checks = {check.name: check for check in faults.checks_of(fabricated(kills=tuple(kills)))}
    assert not checks["driver kills"].holds
    assert "the checkpoint was of 4" in checks["driver kills"].detail


def test_files_have_a_row_a_kill(tmp_path: Path) -> None:
    faults.write_faults(fabricated(), {"kills": 2}, "Two kills", tmp_path)
    table = list(csv.DictReader((tmp_path / faults.TABLE).open()))
    assert [(row["kind"], row["went_on_from"], row["repeated"]) for row in table] == [
        ("worker", "2", "0"),
        ("driver", "4", "1"),
    ]
    summary = json.loads((tmp_path / faults.SUMMARY).read_text())
    assert {kind: cost["kills"] for kind, cost in summary["kills"].items()} == {
        "worker": 1, "node": 0, "driver": 1,
    }  # fmt: skip
    assert summary["iterations_repeated"] == 1
    assert summary["undisturbed"]["equal_until"] == ITERATIONS
    assert (tmp_path / faults.CHART).read_bytes().startswith(b"\x89PNG")


def test_failed_check_fails_the_command(capsys: Captured, monkeypatch: Patch, here: Path) -> None:
    def run(seed: int, kills: int, runs: Path, report_step: Any) -> tuple[Faults, dict[str, Any]]:
        (runs / "run").mkdir()
        return fabricated(planned=kills, exit_code=kills - 2), {}

    monkeypatch.setattr(fault_injection, "run_faults", run)
    monkeypatch.setattr("tempfile.tempdir", str(here))
    assert "ok      iterations: 9 of 9" in Cli(capsys)("bench faults --kills 2").out
    assert not list(here.glob("lm-faults-*"))
    printed = Cli(capsys)("bench faults --kills 3 --output out", 1)
    assert "FAILED  kills: 2 of 3" in printed.out
    (kept,) = here.glob("lm-faults-*/run")
    assert str(kept.parent) in printed.err
    assert (here / "out" / faults.SUMMARY).is_file()


def test_node_that_does_not_join_is_reported(monkeypatch: Patch) -> None:
    """Nodes that end or are late are replaced; if none joins, the benchmark fails."""
    started = list[subprocess.Popen[bytes]]()

    def start(folder: Path, address: str, cpus: int) -> "subprocess.Popen[bytes]":
        (folder / LOG).write_text(f"connecting to {address}")
        started.append(subprocess.Popen(["sleep", "0" if not started else "100"]))
        return started[-1]

    monkeypatch.setattr(fault_cluster, "start_node", start)
    monkeypatch.setattr(fault_cluster, "JOIN_S", 2.0)
    monkeypatch.setattr(fault_cluster, "NODE_START_S", 1.0)
    with ExitStack() as folders:
        cluster = fault_cluster.FaultCluster("127.0.0.1:1", folders)
        cluster.add_node()
        with pytest.raises(InputError, match="within 2 s: node 1: connecting to 127"):
            cluster.wait()
        assert cluster.failed == len(started) - 1 >= 2
        cluster.stop()
    assert not [process for process in started if process.poll() is None]


TINY = {
    "environment": {"workload": "toy", "jobs": 3, "executors": 4},
    "rollouts": {"workers": 2, "sequences": 2, "per_sequence": 3},
    "validation": {"every": 4, "sequences": 2},
    "checkpoints": {"every": 4},
}
QUIET = 60  # iterations: each takes longer while a worker is missing


@pytest.mark.slow
@pytest.mark.long
def test_run_survives_a_kill_of_each_kind(
    capfd: Captured, monkeypatch: Patch, tmp_path: Path
) -> None:
    def tiny(seed: int, kills: int) -> dict[str, Any]:
        return {"seed": seed, **TINY, "training": {"iterations": 4 * kills + QUIET}}

    monkeypatch.setattr(faults, "QUIET_END", QUIET)
    monkeypatch.setattr(fault_injection, "WORKERS", 2)
    monkeypatch.setattr(fault_injection, "settings_of", tiny)
    monkeypatch.setenv(SEVERAL_NODES, "0")  # as `serve` sets it: a Ray of one node
    summary = Cli(capfd).json(f"bench faults --kills 3 --seed 1 --output {tmp_path}")
    assert summary["holds"], summary["checks"]
    assert [cost["kills"] for cost in summary["kills"].values()] == [1, 1, 1]
    assert summary["iterations"] == summary["undisturbed"]["iterations"] == 12 + QUIET
    table = {row["kind"]: row for row in csv.DictReader((tmp_path / faults.TABLE).open())}
    assert table["driver"]["resumes"] == "1"
    assert table["driver"]["went_on_from"] == table["driver"]["checkpoint"]
    assert table["worker"]["rollout_workers"] == "1"
    assert table["node"]["rollout_workers"] in ("1", "2")
    assert all(float(row["recovery_s"]) > 0 for row in table.values())
