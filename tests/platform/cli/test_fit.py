"""`loadmaster fit`: what it writes with a tiny budget, resuming, and misuse in one line."""

import json
from pathlib import Path

import pytest

from loadmaster.platform.cli.main import main
from loadmaster.platform.fitting import steps
from loadmaster.platform.training import loop
from tests.platform.cli.one_line import Cli, Patch
from tests.platform.fitting.test_trace import pai_file, spark_file

QUICK = "--minutes 0.02 --seeds 3 --workers 1"


def command(trace: Path, output: Path) -> str:
    return f"fit {trace} --output {output} --set jobs=5 {QUICK}"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spark_file(tmp_path_factory.mktemp("trace"))


@pytest.fixture(scope="module")
def fitted(trace: Path, ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("fits") / "one"
    assert main(command(trace, output).split()) == 0
    return output


@pytest.mark.slow
def test_fit_writes_all_parts(fitted: Path, trace: Path, cli: Cli) -> None:
    record = json.loads((fitted / "fit.json").read_text())
    names = {path.name for path in fitted.iterdir()} - {"bundle"}
    assert names == {
        "request.json", "workload", "calibration.json", "run", "results", "report.md", "fit.json",
    }  # fmt: skip
    assert (fitted / "bundle").exists() == (record["bundle"] is not None)
    assert (record["bundle"] is not None) == (record["recommendation"]["kind"] == "fitted")
    evaluation = record["evaluation"]
    assert evaluation["settings"]["data"] == str(fitted / "workload" / "test")
    assert evaluation["settings"]["executors"] == 4
    assert evaluation["seeds"] == [0, 1, 2]
    assert {"decima", "decima-fitted", "fair"} <= set(evaluation["policies"])
    assert (fitted / "results" / "summary.csv").is_file()
    assert record["recommendation"]["sentence"] in (fitted / "report.md").read_text()
    # Only the earlier jobs were tuned and trained on.
    run = (fitted / "run" / "config.yaml").read_text()
    assert str(fitted / "workload" / "train") in run
    assert str(fitted / "workload" / "test") not in run
    # The files are a workload and a calibration for every other command.
    found = cli.json(
        f"evaluate dag_scheduling --workload jobs --set data={fitted / 'workload' / 'test'} "
        f"--set calibration={fitted / 'calibration.json'} --set arrivals=poisson --set jobs=5 "
        "--set executors=4 --set interarrival_s=0.4 --set moving_delay_s=0 --set warmup_s=0 "
        f"--seeds 3 --output {fitted.parent / 'evaluated'}"
    )
    for name, figures in found["policies"].items():
        assert figures == evaluation["policies"][name]


@pytest.mark.slow
def test_second_call_prints_the_result_only(
    fitted: Path, trace: Path, monkeypatch: Patch, cli: Cli
) -> None:
    monkeypatch.setattr(loop, "launch", lambda *_: pytest.fail("trained again"))
    before = {path: path.stat().st_mtime_ns for path in fitted.rglob("*")}
    record = cli.json(command(trace, fitted))
    assert record == json.loads((fitted / "fit.json").read_text())
    assert record["recommendation"]["sentence"] in cli(command(trace, fitted)).out
    assert {path: path.stat().st_mtime_ns for path in fitted.rglob("*")} == before


@pytest.mark.slow
@pytest.mark.long
def test_interrupted_fit_continues(
    fitted: Path, trace: Path, tmp_path: Path, monkeypatch: Patch, cli: Cli
) -> None:
    """Stopped in the second rule's tuning, then in the comparison; nothing runs twice."""
    output, tuned = tmp_path / "one", []
    calibrate = steps.calibration.calibrate

    def once(name: str, *arguments: object) -> object:
        if tuned:
            raise KeyboardInterrupt
        tuned.append(name)
        return calibrate(name, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(steps.calibration, "calibrate", once)
    cli(command(trace, output), code=130)
    monkeypatch.undo()
    entries = json.loads((output / "calibration.json").read_text())
    assert [entry["baseline"] for entry in entries] == tuned
    monkeypatch.setattr(steps.files, "write_everything", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cli(command(trace, output))
    monkeypatch.undo()
    assert not (output / "results").exists()
    monkeypatch.setattr(loop, "launch", lambda *_: pytest.fail("trained again"))
    cli(command(trace, output))
    # Rules do not depend on the training: the same figures as without interruption.
    first, second = (
        json.loads((folder / "fit.json").read_text())["evaluation"]["policies"]["weighted-fair"]
        for folder in (fitted, output)
    )
    assert first == second


@pytest.mark.slow
@pytest.mark.long
def test_gpu_trace_is_fitted_by_das(ray_session: None, tmp_path: Path, cli: Cli) -> None:
    output = tmp_path / "one"
    record = cli.json(f"fit {pai_file(tmp_path)} --output {output} {QUICK}")
    assert record["evaluation"]["environment"] == "gpu_scheduling"
    assert {"das", "das-fitted"} <= set(record["evaluation"]["policies"])
    assert (output / "workload" / "test" / "jobs.csv").is_file()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ("--seeds 0", "--seeds is 0"),
        ("--minutes 0", "--minutes is 0"),
        ("--workers 0", "--workers is 0"),
        ("--format csv", "--format 'csv'"),
        ("--system das", "expects decima"),
        ("--system nothing", "unknown system"),
        ("--from nothing", "unknown policy"),
        ("--from das-small", "is a policy of 'das'"),
        ("--set jbs=3", "did you mean 'jobs'"),
        ("--set workload=toy", "--set workload"),
    ],
)
def test_misuse_is_one_line(
    changed: str, words: str, trace: Path, tmp_path: Path, cli: Cli
) -> None:
    output = tmp_path / "fit"
    assert words in cli.error(f"fit {trace} --output {output} {changed}")
    assert not output.exists()


def test_folder_of_something_else_is_refused(trace: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    line = f"fit {trace} --output {tmp_path}"
    assert "holds something else" in cli.error(line)
    (tmp_path / "notes.txt").unlink()
    (tmp_path / "request.json").write_text('{"minutes": 3}')
    assert "another fit, with other minutes, seeds" in cli.error(line)
