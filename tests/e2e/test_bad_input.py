"""What a user gets wrong: one line that names it, exit code 2, no traceback, nothing written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loadmaster.platform.cli.main import main
from tests.bundles import make_bundle, make_run

EVALUATE = ["evaluate", "dag_scheduling", "--seeds", "1"]
TASKS = {
    "malformed": "M1,many,j_1,1,Terminated,10,20,100,0.5",
    "cyclic": "M1_2,1,j_1,1,Terminated,10,20,100,0.5\nM2_1,1,j_1,1,Terminated,10,20,100,0.5",
    "without-tasks": "M1,0,j_1,1,Terminated,10,20,100,0.5",
}


def arguments(name: str, folder: Path) -> tuple[list[str], list[str]]:
    """A faulty command line, and what its complaint has to mention."""
    for kind, text in TASKS.items():
        (folder / f"{kind}.csv").write_text(text + "\n")
    (folder / "tpch" / "2g").mkdir(parents=True)
    (folder / "tpch" / "2g" / "adj_mat_1.npy").write_bytes(b"not an array")
    (folder / "file").write_text("in the way")
    faulty_bundles(folder)
    alibaba = [*EVALUATE, "--workload", "alibaba", "--set"]
    return {
        "missing trace": ([*alibaba, f"data={folder}/none.csv"], ["none.csv"]),
        "malformed trace": ([*alibaba, f"data={folder}/malformed.csv"], ["malformed.csv", "many"]),
        "cyclic DAG": ([*alibaba, f"data={folder}/cyclic.csv"], ["cyclic.csv", "j_1", "DAG"]),
        "stage without tasks": (
            [*alibaba, f"data={folder}/without-tasks.csv"],
            ["without-tasks.csv", "0 tasks"],
        ),
        "malformed array": (
            [*EVALUATE, "--workload", "tpch", "--set", f"data={folder}"],
            ["adj_mat_1.npy"],
        ),
        "no data named": ([*EVALUATE, "--workload", "tpch"], ["LOADMASTER_DATA", "data="]),
        "unknown policy": ([*EVALUATE, "--policy", "fiar"], ["'fiar'", "did you mean 'fair'"]),
        "unknown workload": ([*EVALUATE, "--workload", "tpch-lik"], ["did you mean 'tpch-like'"]),
        "unknown environment": (["evaluate", "dag_schedulin"], ["did you mean 'dag_scheduling'"]),
        "unknown setting": ([*EVALUATE, "--set", "executor=3"], ["did you mean 'executors'"]),
        "impossible setting": (
            [*EVALUATE, "--set", "executors=-1"],
            ["executors", "greater than 0"],
        ),
        "negative seed count": ([*EVALUATE[:2], "--seeds", "-3"], ["--seeds is -3", "1 or more"]),
        "unwritable output": ([*EVALUATE, "--output", f"{folder}/file/out"], ["file/out"]),
        "unwritable page": (
            ["replay", "dag_scheduling", "-o", f"{folder}/file/replay.html"],
            ["file/replay.html"],
        ),
        "negative seed": (["replay", "dag_scheduling", "--seed", "-1"], ["-1"]),
        "unwritable calibration": (
            ["calibrate", "dag_scheduling", "--output", f"{folder}/file/kept.json"],
            ["file/kept.json"],
        ),
        "unknown command": (["evaluat", "dag_scheduling"], ["evaluat"]),
        "no such bundle": (
            [*EVALUATE, "--policy", f"{folder}/bundles/none"],
            ["bundles/none does not exist", "policy bundle"],
        ),
        "a file for a bundle": ([*EVALUATE, "--policy", f"{folder}/file"], ["is a file"]),
        "a folder for a bundle": (
            [*EVALUATE, "--policy", f"{folder}/tpch"],
            ["has no manifest.json"],
        ),
        "cut bundle": (
            [*EVALUATE, "--policy", f"{folder}/bundles/cut"],
            ["cut/weights.safetensors", "bytes; expected"],
        ),
        "foreign bundle": (
            ["evaluate", "decima", "--policy", f"{folder}/bundles/foreign"],
            ["foreign/manifest.json", "no loadmaster policy"],
        ),
        "newer bundle": (
            ["replay", f"{folder}/bundles/newer"],
            ["loadmaster 99.0", "format 2", "upgrade"],
        ),
        "bundle of an unknown system": (
            ["replay", "dag_scheduling", "--policy", f"{folder}/bundles/alien"],
            ["bundles/alien", "unknown system 'alien'"],
        ),
        "export of no run": (["export", f"{folder}/tpch", "out"], ["tpch is not a run"]),
        "export of a run without a policy": (
            ["export", f"{folder}/run", "out"],
            ["run has no best policy yet"],
        ),
        "export over something": (
            ["export", f"{folder}/trained", f"{folder}/tpch"],
            ["tpch exists already"],
        ),
        "export of a damaged policy": (
            ["export", f"{folder}/trained", "out", "--which", "last"],
            ["last/weights.safetensors is damaged"],
        ),
        "unwritable bundle": (
            ["export", f"{folder}/trained", f"{folder}/file/out"],
            ["cannot write the bundle", "file/out"],
        ),
        "nothing to explain": (
            [*EVALUATE, "--policy", "fair", "--explain", "2"],
            ["--explain", "expected one by --policy"],
        ),
        **gpu_cases(folder),
        **training_cases(folder),
    }[name]


def gpu_cases(folder: Path) -> dict[str, tuple[list[str], list[str]]]:
    """Of `loadmaster evaluate gpu_scheduling`, and of commands that do not know it yet."""
    header = "job_id,num_inst,submit_time,num_cpu,num_gpu,gpu_type,duration,user"
    for kind, row in {
        "negative": "22,1,133,6.0,1.0,MISC,-37,",
        "no-such-gpu": "22,1,133,6.0,1.0,V1000,37,",
        "gpus": "22,1,133,6.0,many,MISC,37,",
    }.items():
        (folder / f"{kind}.csv").write_text(f"{header}\n21,1,0,6.0,1.0,MISC,9,\n{row}\n")
    (folder / "no-user.csv").write_text(header.removesuffix(",user") + "\n")
    gpu = ["evaluate", "gpu_scheduling", "--seeds", "1"]
    pai = [*gpu, "--workload", "pai", "--set"]
    return {
        "job larger than the cluster": (
            [
                *gpu,
                "--workload",
                "toy",
                "--set",
                "machines=[{count: 1, gpus: 3, gpu: T4, cpus: 9}]",
            ],
            ["job 4 asks for 4 x 1 GPU", "the empty cluster holds 3", "oversized=skip or queue"],
        ),
        "machines without GPUs": (
            [*gpu, "--set", "machines=[{count: 9, gpu: T4, cpus: 8}]"],
            ["machines.0.gpus", "required"],
        ),
        "unknown GPU type": (
            [*gpu, "--set", "machines=[{count: 1, gpus: 8, gpu: V10, cpus: 96}]"],
            ["unknown GPU type 'V10'; did you mean 'V100'?"],
        ),
        "unknown GPU type in a trace": (
            [*pai, f"data={folder}/no-such-gpu.csv"],
            ["no-such-gpu.csv, line 3", "gpu_type 'V1000'", "expected a GPU type"],
        ),
        "negative duration": (
            [*pai, f"data={folder}/negative.csv"],
            ["negative.csv, line 3", "duration '-37'", "0 or more"],
        ),
        "GPUs that are no number": (
            [*pai, f"data={folder}/gpus.csv"],
            ["gpus.csv, line 3", "num_gpu 'many'"],
        ),
        "column missing": ([*pai, f"data={folder}/no-user.csv"], ["no-user.csv: no column 'user'"]),
        "no GPU trace": ([*pai, f"data={folder}/tpch"], ["tpch: no trace found"]),
        "no GPU data named": ([*gpu, "--workload", "openb"], ["LOADMASTER_DATA", "data="]),
        "price missing": (
            [
                *gpu,
                "--set",
                "machines=[{count: 1, gpus: 8, gpu: H100, cpus: 96}]",
                "--set",
                "gpu_types=[{name: H100, speed: 4}]",
            ],
            ["GPU type 'H100' has no price", "price_per_hour"],
        ),
        "negative price": (
            [*gpu, "--set", "gpu_types=[{name: H100, speed: 4, price_per_hour: -1}]"],
            ["gpu_types.0.price_per_hour", "greater than or equal to 0"],
        ),
        "unknown cluster": ([*gpu, "--set", "cluster=huge"], ["cluster", "'small', 'medium'"]),
        "unknown GPU workload": (
            [*gpu, "--workload", "pai-lik"],
            ["unknown workload 'pai-lik'; did you mean 'pai-like'?"],
        ),
        "unknown GPU policy": (
            [*gpu, "--policy", "fifo-firstfit"],
            ["unknown policy 'fifo-firstfit'; did you mean 'fifo-first-fit'?"],
        ),
        "two rates": (
            [*gpu, "--set", "load=1", "--set", "interarrival_s=9"],
            ["interarrival_s and load", "only one"],
        ),
        "more jobs than recorded": (
            [*gpu, "--workload", "toy", "--set", "jobs=6"],
            ["6 of workload 'toy', which has 5"],
        ),
        "policy of another environment": (
            [*gpu, "--policy", f"{folder}/bundles/good"],
            ["decides in 'dag_scheduling'", "expected a policy for 'gpu_scheduling'"],
        ),
        "nothing to calibrate": (
            ["calibrate", "gpu_scheduling"],
            ["no baseline of gpu_scheduling has parameters"],
        ),
        "unknown GPU policy to replay": (
            ["replay", "gpu_scheduling", "--policy", "las-consolidated"],
            ["did you mean 'las-consolidate'?"],
        ),
        "replay of another system's policy": (
            ["replay", "gpu_scheduling", "--policy", f"{folder}/bundles/good"],
            ["decides in 'dag_scheduling'", "expected a policy for 'gpu_scheduling'"],
        ),
        "picture of nobody's decisions": (
            ["replay", "gpu_scheduling", "--picture", f"{folder}/decisions.png"],
            ["--picture shows decisions of a learned policy"],
        ),
        "picture of no kind": (
            ["replay", "gpu_scheduling", "--picture", f"{folder}/decisions.gif"],
            ["decisions.gif", ".png"],
        ),
    }


def training_cases(folder: Path) -> dict[str, tuple[list[str], list[str]]]:
    """Of `loadmaster train`: all refused before Ray starts."""
    (folder / "mine.yaml").write_text("seed: 3\ntraining: [iterations\n")
    (folder / "typo.yaml").write_text("training:\n  iteration: 3\n")
    train = ["train", "decima", "--set"]
    start, take = f"training.start={folder}", "training.take="
    return {
        "no system": (["train"], ["no system given", "--resume RUN"]),
        "unknown system": (["train", "decema"], ["'decema'", "did you mean 'decima'"]),
        "unknown key": (
            [*train, "training.iteration=3"],
            ["'training.iteration'", "did you mean 'training.iterations'"],
        ),
        "unknown key in a file": (
            ["train", "decima", "--config", f"{folder}/typo.yaml"],
            ["did you mean 'training.iterations'"],
        ),
        "bad YAML": (["train", "decima", "--config", f"{folder}/mine.yaml"], ["mine.yaml:3: "]),
        "no such config": (
            ["train", "decima", "--config", f"{folder}/none.yaml"],
            ["none.yaml: No such file", "expected a YAML file"],
        ),
        "workload of a run": ([*train, "environment.workload=tpch-lik"], ["'tpch-like'"]),
        "run over something": (
            ["train", "decima", "--output", f"{folder}/tpch"],
            ["exists already", "--resume"],
        ),
        "run in a file": (["train", "decima", "--output", f"{folder}/file/run"], ["file/run"]),
        "resume of no run": (["train", "--resume", f"{folder}/tpch"], ["is not a run"]),
        "resume of a run of another": (
            ["train", "sure", "--resume", f"{folder}/run"],
            ["is a run of 'decima', not of 'sure'"],
        ),
        "resume of a run that never began": (
            ["train", "--resume", f"{folder}/run"],
            ["has no checkpoint"],
        ),
        "resume elsewhere": (
            ["train", "--resume", f"{folder}/run", "--output", "other"],
            ["--output and --resume exclude each other"],
        ),
        "another task for a run": (
            ["train", "--resume", f"{folder}/begun", "--set", "environment.jobs=9"],
            ["environment.jobs", "cannot become 9", "expected a new run"],
        ),
        "no GPU": (["train", "decima", "--gpus", "1"], ["resources.gpus is 1", "expected 0"]),
        "negative workers": (
            ["train", "decima", "--workers", "-1"],
            ["rollouts.workers", "greater than or equal to 0"],
        ),
        "start from nothing": ([*train, f"{start}/none"], ["none does not exist"]),
        "start from no bundle": ([*train, f"{start}/tpch"], ["has no manifest.json"]),
        "start from a cut bundle": ([*train, f"{start}/bundles/cut"], ["bytes; expected"]),
        "start from another network": (
            [*train, f"{start}/bundles/good", "--set", "network.width=4"],
            ["training.start", "'width': 8", "expected the configured one"],
        ),
        "take from nobody": ([*train, f"{take}[x]"], ["there is no training.start"]),
        "take no such table": (
            [*train, f"{start}/bundles/good", "--set", f"{take}['scroe*']"],
            ["no table is called scroe*", "score"],
        ),
        "take another shape": (
            [*train, "network.width=4", "--set", f"{start}/bundles/good", "--set", f"{take}['*']"],
            ["training.take: ", "has the shape (16, 8); expected (16, 4)"],
        ),
        "no MLflow": (["train", "decima", "--mlflow", "http://x"], ["loadmaster[mlflow]"]),
    }


def faulty_bundles(folder: Path) -> None:
    """Copies of a good bundle with a fault each, and runs without a policy or with a bad one."""
    good = make_bundle(folder / "bundles" / "good")
    edits = {
        "foreign": ('"kind": "loadmaster-policy"', '"kind": "something else"'),
        "newer": ('"format": 1,\n  "loadmaster": "', '"format": 2,\n  "loadmaster": "99.'),
        "alien": ('"system": "decima"', '"system": "alien"'),
    }
    for name, (before, after) in edits.items():
        manifest = Path(shutil.copytree(good, folder / "bundles" / name)) / "manifest.json"
        text = manifest.read_text()
        assert before in text
        manifest.write_text(text.replace(before, after))
    cut = Path(shutil.copytree(good, folder / "bundles" / "cut")) / "weights.safetensors"
    cut.write_bytes(cut.read_bytes()[:-8])
    make_run(folder / "run")
    (make_run(folder / "begun") / "checkpoints" / "iteration-000010").mkdir(parents=True)
    make_run(folder / "trained", "best", "last")
    spoilt = folder / "trained" / "last" / "weights.safetensors"
    spoilt.write_bytes(bytes(spoilt.stat().st_size))


CASES = [
    "missing trace", "malformed trace", "cyclic DAG", "stage without tasks", "malformed array",
    "no data named", "unknown policy", "unknown workload", "unknown environment",
    "unknown setting", "impossible setting", "negative seed count", "unwritable output",
    "unwritable page", "negative seed", "unwritable calibration", "unknown command",
    "no such bundle", "a file for a bundle", "a folder for a bundle", "cut bundle",
    "foreign bundle", "newer bundle", "bundle of an unknown system", "export of no run",
    "export of a run without a policy", "export over something", "export of a damaged policy",
    "unwritable bundle", "nothing to explain", "job larger than the cluster",
    "machines without GPUs", "unknown GPU type", "unknown GPU type in a trace", "negative duration",
    "GPUs that are no number", "column missing", "no GPU trace", "no GPU data named",
    "price missing", "negative price", "unknown cluster", "unknown GPU workload",
    "unknown GPU policy", "two rates", "more jobs than recorded", "policy of another environment",
    "nothing to calibrate", "unknown GPU policy to replay", "replay of another system's policy",
    "picture of nobody's decisions", "picture of no kind", "no system", "unknown system",
    "unknown key", "unknown key in a file", "bad YAML", "no such config", "workload of a run",
    "run over something", "run in a file", "resume of no run", "resume of a run of another",
    "resume of a run that never began", "resume elsewhere", "another task for a run", "no GPU",
    "negative workers", "start from nothing", "start from no bundle", "start from a cut bundle",
    "start from another network", "take from nobody", "take no such table", "take another shape",
    "no MLflow",
]  # fmt: skip


def everything_in(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("name", CASES)
def test_one_line_and_nothing_written(
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LOADMASTER_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    line, mentioned = arguments(name, tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    before = everything_in(tmp_path)
    code = main(line)
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    complaint = err.splitlines()[-1]
    assert complaint.startswith("error: ")
    assert [part for part in err.splitlines() if "error" in part.lower()] == [complaint]
    assert "Traceback" not in err
    for part in mentioned:
        assert part in complaint, complaint
    assert everything_in(tmp_path) == before
    assert list(work.iterdir()) == []


def test_the_installed_command_does_the_same(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("loadmaster")
    done = subprocess.run(
        [command, *EVALUATE, "--workload", "nowhere"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: unknown workload 'nowhere'")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
