"""Bad input of commands: one line that names the fault, exit code 2, nothing written."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loadmaster.platform.cli.main import main
from tests.bundles import make_bundle, make_run

pytestmark = pytest.mark.slow
DAG = "evaluate dag_scheduling --seeds 1"
GPU = "evaluate gpu_scheduling --seeds 1"
ALIBABA = f"{DAG} --workload alibaba --set data=@"
PAI = f"{GPU} --workload pai --set data=@"
TRAIN = "train decima --set"
# A command line, where @ is the folder of faulty files, and the words its error has to contain.
CASES = {
    "missing trace": (f"{ALIBABA}/none.csv", ["none.csv"]),
    "malformed trace": (f"{ALIBABA}/malformed.csv", ["malformed.csv", "many"]),
    "cyclic DAG": (f"{ALIBABA}/cyclic.csv", ["cyclic.csv", "j_1", "DAG"]),
    "stage without tasks": (f"{ALIBABA}/without-tasks.csv", ["without-tasks.csv", "0 tasks"]),
    "malformed array": (f"{DAG} --workload tpch --set data=@", ["adj_mat_1.npy"]),
    "no data named": (f"{DAG} --workload tpch", ["LOADMASTER_DATA", "data="]),
    "unknown policy": (f"{DAG} --policy fiar", ["'fiar'", "'fair'"]),
    "unknown workload": (f"{DAG} --workload tpch-lik", ["'tpch-like'"]),
    "unknown environment": ("evaluate dag_schedulin", ["'dag_scheduling'"]),
    "unknown setting": (f"{DAG} --set executor=3", ["'executors'"]),
    "impossible setting": (f"{DAG} --set executors=-1", ["executors", "greater than 0"]),
    "negative seed count": ("evaluate dag_scheduling --seeds -3", ["--seeds is -3"]),
    "unwritable output": (f"{DAG} --output @/file/out", ["file/out"]),
    "unwritable page": ("replay dag_scheduling -o @/file/replay.html", ["file/replay.html"]),
    "negative seed": ("replay dag_scheduling --seed -1", ["-1"]),
    "unwritable calibration": (
        "calibrate dag_scheduling --output @/file/kept.json",
        ["file/kept.json"],
    ),
    "unknown command": ("evaluat dag_scheduling", ["evaluat"]),
    "no such bundle": (f"{DAG} --policy @/bundles/none", ["bundles/none"]),
    "a file for a bundle": (f"{DAG} --policy @/file", ["is a file"]),
    "a folder for a bundle": (f"{DAG} --policy @/tpch", ["manifest.json"]),
    "cut bundle": (f"{DAG} --policy @/bundles/cut", ["cut/weights.safetensors", "bytes"]),
    "foreign bundle": (
        "evaluate decima --policy @/bundles/foreign",
        ["foreign/manifest.json", "no loadmaster policy"],
    ),
    "newer bundle": ("replay @/bundles/newer", ["loadmaster 99.0", "format 2", "upgrade"]),
    "bundle of an unknown system": (
        "replay dag_scheduling --policy @/bundles/alien",
        ["bundles/alien", "'alien'"],
    ),
    "export of no run": ("export @/tpch out", ["tpch", "run"]),
    "export of a run without a policy": ("export @/run out", ["no best policy"]),
    "export over something": ("export @/trained @/tpch", ["tpch exists already"]),
    "export of a damaged policy": (
        "export @/trained out --which last",
        ["last/weights.safetensors"],
    ),
    "unwritable bundle": ("export @/trained @/file/out", ["file/out"]),
    "nothing to explain": (f"{DAG} --policy fair --explain 2", ["--explain", "--policy"]),
    "negative explanations": (f"{DAG} --policy fair --explain -1", ["--explain is -1"]),
    # GPU scheduling
    "job larger than the cluster": (
        f"{GPU} --workload toy --set 'machines=[{{count: 1, gpus: 3, gpu: T4, cpus: 9}}]'",
        ["job 4", "4 x 1 GPU", "oversized=skip"],
    ),
    "machines without GPUs": (
        f"{GPU} --set 'machines=[{{count: 9, gpu: T4, cpus: 8}}]'",
        ["machines.0.gpus", "required"],
    ),
    "unknown GPU type": (
        f"{GPU} --set 'machines=[{{count: 1, gpus: 8, gpu: V10, cpus: 96}}]'",
        ["'V10'", "'V100'"],
    ),
    "unknown GPU type in a trace": (f"{PAI}/no-such-gpu.csv", ["no-such-gpu.csv", "3", "'V1000'"]),
    "negative duration": (f"{PAI}/negative.csv", ["negative.csv", "3", "duration '-37'"]),
    "GPUs that are no number": (f"{PAI}/gpus.csv", ["gpus.csv", "3", "num_gpu 'many'"]),
    "column missing": (f"{PAI}/no-user.csv", ["no-user.csv", "'user'"]),
    "no GPU trace": (f"{PAI}/tpch", ["tpch", "no trace"]),
    "no GPU data named": (f"{GPU} --workload openb", ["LOADMASTER_DATA", "data="]),
    "price missing": (
        f"{GPU} --set 'machines=[{{count: 1, gpus: 8, gpu: H100, cpus: 96}}]' "
        "--set 'gpu_types=[{name: H100, speed: 4}]'",
        ["'H100'", "price_per_hour"],
    ),
    "negative price": (
        f"{GPU} --set 'gpu_types=[{{name: H100, speed: 4, price_per_hour: -1}}]'",
        ["gpu_types.0.price_per_hour"],
    ),
    "unknown cluster": (f"{GPU} --set cluster=huge", ["cluster", "'small', 'medium'"]),
    "unknown GPU workload": (f"{GPU} --workload pai-lik", ["'pai-lik'", "'pai-like'"]),
    "unknown GPU policy": (f"{GPU} --policy fifo-firstfit", ["'fifo-first-fit'"]),
    "two rates": (f"{GPU} --set load=1 --set interarrival_s=9", ["interarrival_s and load"]),
    "more jobs than recorded": (f"{GPU} --workload toy --set jobs=6", ["6", "'toy'", "5"]),
    "policy of another environment": (
        f"{GPU} --policy @/bundles/good",
        ["'dag_scheduling'", "'gpu_scheduling'"],
    ),
    "nothing to calibrate": ("calibrate gpu_scheduling", ["gpu_scheduling"]),
    "unknown GPU policy to replay": (
        "replay gpu_scheduling --policy las-consolidated",
        ["'las-consolidate'"],
    ),
    "replay of another system's policy": (
        "replay gpu_scheduling --policy @/bundles/good",
        ["'dag_scheduling'", "'gpu_scheduling'"],
    ),
    "picture without a learned policy": (
        "replay gpu_scheduling --picture @/decisions.png",
        ["--picture", "learned policy"],
    ),
    "picture of unknown format": (
        "replay gpu_scheduling --picture @/decisions.gif",
        ["decisions.gif", ".png"],
    ),
    # Training: all faults are found before Ray starts
    "no system": ("train", ["system", "--resume RUN"]),
    "unknown system": ("train decema", ["'decema'", "'decima'"]),
    "unknown key": (f"{TRAIN} training.iteration=3", ["'training.iterations'"]),
    "unknown key in a file": ("train decima --config @/typo.yaml", ["'training.iterations'"]),
    "bad YAML": ("train decima --config @/mine.yaml", ["mine.yaml:3: "]),
    "no such config": ("train decima --config @/none.yaml", ["none.yaml", "YAML"]),
    "workload of a run": (f"{TRAIN} environment.workload=tpch-lik", ["'tpch-like'"]),
    "run over something": ("train decima --output @/tpch", ["exists already", "--resume"]),
    "run in a file": ("train decima --output @/file/run", ["file/run"]),
    "resume of no run": ("train --resume @/tpch", ["is not a run"]),
    "resume of a run of another": ("train sure --resume @/run", ["'decima'", "'sure'"]),
    "resume of a run that never began": ("train --resume @/run", ["no checkpoint"]),
    "resume elsewhere": ("train --resume @/run --output other", ["--output and --resume"]),
    "another task for a run": (
        "train --resume @/begun --set environment.jobs=9",
        ["environment.jobs", "9", "new run"],
    ),
    "no GPU": ("train decima --gpus 1", ["resources.gpus is 1", "expected 0"]),
    "negative workers": ("train decima --workers -1", ["rollouts.workers"]),
    "start from nothing": (f"{TRAIN} training.warm_start=@/none", ["none does not exist"]),
    "start from no bundle": (f"{TRAIN} training.warm_start=@/tpch", ["manifest.json"]),
    "start from a cut bundle": (f"{TRAIN} training.warm_start=@/bundles/cut", ["bytes; expected"]),
    "start from another network": (
        f"{TRAIN} training.warm_start=@/bundles/good --set network.width=4",
        ["training.warm_start", "'width': 8"],
    ),
    "take without start": (f"{TRAIN} training.weight_filter=[x]", ["training.warm_start"]),
    "take no such table": (
        f"{TRAIN} training.warm_start=@/bundles/good --set \"training.weight_filter=['scroe*']\"",
        ["scroe*", "score"],
    ),
    "take another shape": (
        f"{TRAIN} network.width=4 --set training.warm_start=@/bundles/good "
        "--set \"training.weight_filter=['*']\"",
        ["training.weight_filter", "(16, 8)", "(16, 4)"],
    ),
    "no MLflow": ("train decima --mlflow http://x", ["loadmaster[mlflow]"]),
}
FILES = {
    "malformed.csv": "M1,many,j_1,1,Terminated,10,20,100,0.5",
    "cyclic.csv": "M1_2,1,j_1,1,Terminated,10,20,100,0.5\nM2_1,1,j_1,1,Terminated,10,20,100,0.5",
    "without-tasks.csv": "M1,0,j_1,1,Terminated,10,20,100,0.5",
    "tpch/2g/adj_mat_1.npy": "not an array",
    "file": "in the way",
    "no-user.csv": "job_id,num_inst,submit_time,num_cpu,num_gpu,gpu_type,duration",
    "mine.yaml": "seed: 3\ntraining: [iterations",
    "typo.yaml": "training:\n  iteration: 3",
}
GPU_ROWS = {
    "negative.csv": "22,1,133,6.0,1.0,MISC,-37,",
    "no-such-gpu.csv": "22,1,133,6.0,1.0,V1000,37,",
    "gpus.csv": "22,1,133,6.0,many,MISC,37,",
}
MANIFEST_EDITS = {
    "foreign": ('"kind": "loadmaster-policy"', '"kind": "something else"'),
    "newer": ('"format": 1,\n  "loadmaster": "', '"format": 2,\n  "loadmaster": "99.'),
    "alien": ('"system": "decima"', '"system": "alien"'),
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of faulty traces, configs, bundles and runs."""
    folder = tmp_path_factory.mktemp("faulty")
    rows = {name: f"{FILES['no-user.csv']},user\n{row}" for name, row in GPU_ROWS.items()}
    rows = {name: text.replace("\n", "\n21,1,0,6.0,1.0,MISC,9,\n") for name, text in rows.items()}
    for name, text in {**FILES, **rows}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    good = make_bundle(folder / "bundles" / "good")
    for name, (before, after) in MANIFEST_EDITS.items():
        manifest = Path(shutil.copytree(good, folder / "bundles" / name)) / "manifest.json"
        text = manifest.read_text()
        assert before in text
        manifest.write_text(text.replace(before, after))
    cut = Path(shutil.copytree(good, folder / "bundles" / "cut")) / "weights.safetensors"
    cut.write_bytes(cut.read_bytes()[:-8])
    make_run(folder / "run")
    (make_run(folder / "begun") / "checkpoints" / "iteration-000010").mkdir(parents=True)
    make_run(folder / "trained", "best", "last")
    damaged = folder / "trained" / "last" / "weights.safetensors"
    damaged.write_bytes(bytes(damaged.stat().st_size))
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("name", CASES)
def test_one_line_and_nothing_written(
    name: str,
    faulty: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LOADMASTER_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.chdir(tmp_path)
    command, words = CASES[name]
    before = contents(faulty)
    assert main([part.replace("@", str(faulty)) for part in shlex.split(command)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    line = err.splitlines()[-1]
    assert line.startswith("error: ")
    assert [part for part in err.splitlines() if "error" in part.lower()] == [line]
    assert "Traceback" not in err
    assert [word for word in words if word not in line] == [], line
    assert contents(faulty) == before
    assert list(tmp_path.iterdir()) == []


def test_installed_command_reports_one_line(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("loadmaster")
    done = subprocess.run(
        [command, *shlex.split(DAG), "--workload", "nowhere"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: unknown workload 'nowhere'")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
