"""Bad input of commands: one line that names the fault, exit code 2, nothing written."""

import shlex
import shutil
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
MACHINE = f"{GPU} --set 'machines=[{{count: 1, cpus: 9"
H100 = "--set 'gpu_types=[{name: H100, speed: 4"
TRAIN = "train decima --set"
WARM = f"{TRAIN} training.warm_start=@/bundles/good --set"
# A command line, where @ is the folder of faulty files, and the words its error has to contain.
CASES = [
    (f"{ALIBABA}/none.csv", "none.csv"),
    (f"{ALIBABA}/malformed.csv", "malformed.csv", "many"),
    (f"{ALIBABA}/cyclic.csv", "cyclic.csv", "j_1", "DAG"),
    (f"{ALIBABA}/without-tasks.csv", "without-tasks.csv", "0 tasks"),
    (f"{DAG} --workload tpch --set data=@", "adj_mat_1.npy"),
    (f"{DAG} --workload tpch", "LOADMASTER_DATA", "data="),
    (f"{DAG} --policy fiar", "'fiar'", "'fair'"),
    (f"{DAG} --workload tpch-lik", "'tpch-like'"),
    ("evaluate dag_schedulin", "'dag_scheduling'"),
    (f"{DAG} --set executor=3", "'executors'"),
    (f"{DAG} --set executors=-1", "executors", "greater than 0"),
    ("replay dag_scheduling -o @/file/replay.html", "file/replay.html"),
    ("replay dag_scheduling --seed -1", "-1"),
    ("calibrate dag_scheduling --output @/file/kept.json", "file/kept.json"),
    (f"{DAG} --policy @/bundles/none", "bundles/none"),
    (f"{DAG} --policy @/file", "is not a folder"),
    (f"{DAG} --policy @/tpch", "manifest.json"),
    (f"{DAG} --policy @/bundles/cut", "cut/weights.safetensors", "bytes"),
    ("evaluate decima --policy @/bundles/foreign", "foreign/manifest.json", "no loadmaster policy"),
    ("replay @/bundles/newer", "loadmaster 99.0", "format 2", "upgrade"),
    ("replay dag_scheduling --policy @/bundles/alien", "bundles/alien", "'alien'"),
    ("export @/tpch out", "tpch", "run"),
    ("export @/run out", "no best policy"),
    ("export @/trained @/tpch", "tpch exists already"),
    ("export @/trained out --which last", "last/weights.safetensors"),
    ("export @/trained @/file/out", "file/out"),
    (f"{DAG} --policy fair --explain 2", "--explain", "--policy"),
    (f"{DAG} --policy fair --explain -1", "--explain is -1"),
    # GPU scheduling
    (f"{MACHINE}, gpus: 3, gpu: T4}}]' --workload toy", "job 4", "4 x 1 GPU", "oversized=skip"),
    (f"{MACHINE}, gpu: T4}}]'", "machines.0.gpus", "required"),
    (f"{MACHINE}, gpus: 8, gpu: V10}}]'", "'V10'", "'V100'"),
    (f"{PAI}/no-such-gpu.csv", "no-such-gpu.csv", "3", "'V1000'"),
    (f"{PAI}/negative.csv", "negative.csv", "3", "duration '-37'"),
    (f"{PAI}/gpus.csv", "gpus.csv", "3", "num_gpu 'many'"),
    (f"{PAI}/no-user.csv", "no-user.csv", "'user'"),
    (f"{PAI}/tpch", "tpch", "no trace"),
    (f"{GPU} --workload openb", "LOADMASTER_DATA", "data="),
    (f"{MACHINE}, gpus: 8, gpu: H100}}]' {H100}}}]'", "'H100'", "price_per_hour"),
    (f"{GPU} {H100}, price_per_hour: -1}}]'", "gpu_types.0.price_per_hour"),
    (f"{GPU} --set cluster=huge", "cluster", "'small', 'medium'"),
    (f"{GPU} --workload pai-lik", "'pai-lik'", "'pai-like'"),
    (f"{GPU} --policy fifo-firstfit", "'fifo-first-fit'"),
    (f"{GPU} --set load=1 --set interarrival_s=9", "interarrival_s and load"),
    (f"{GPU} --workload toy --set jobs=6", "6", "'toy'", "5"),
    (f"{GPU} --policy @/bundles/good", "'dag_scheduling'", "'gpu_scheduling'"),
    ("calibrate gpu_scheduling --each", "gpu_scheduling"),
    ("replay gpu_scheduling --policy las-consolidated", "'las-consolidate'"),
    ("replay gpu_scheduling --policy @/bundles/good", "'dag_scheduling'", "'gpu_scheduling'"),
    ("replay gpu_scheduling --picture @/decisions.png", "--picture", "learned policy"),
    ("replay gpu_scheduling --picture @/decisions.gif", "decisions.gif", ".png"),
    # Training: all faults are found before Ray starts
    ("train", "system", "--resume RUN"),
    ("train decema", "'decema'", "'decima'"),
    (f"{TRAIN} training.iteration=3", "'training.iterations'"),
    ("train decima --config @/typo.yaml", "'training.iterations'"),
    ("train decima --config @/mine.yaml", "mine.yaml:3: "),
    ("train decima --config @/none.yaml", "none.yaml", "No such file"),
    (f"{TRAIN} environment.workload=tpch-lik", "'tpch-like'"),
    ("train decima --output @/tpch", "exists already", "--resume"),
    ("train decima --output @/file/run", "file/run"),
    ("train --resume @/tpch", "is not a run"),
    ("train sure --resume @/run", "'decima'", "'sure'"),
    ("train --resume @/run", "no checkpoint"),
    ("train --resume @/run --output other", "--output and --resume"),
    ("train --resume @/begun --set environment.jobs=9", "environment.jobs", "9", "new run"),
    ("train decima --gpus 1", "resources.gpus is 1", "expected 0"),
    ("train decima --workers -1", "rollouts.workers"),
    (f"{TRAIN} training.warm_start=@/none", "none does not exist"),
    (f"{TRAIN} training.warm_start=@/tpch", "manifest.json"),
    (f"{TRAIN} training.warm_start=@/bundles/cut", "bytes; expected"),
    (f"{WARM} network.width=4", "training.warm_start", "'width': 8"),
    (f"{TRAIN} training.weight_filter=[x]", "training.warm_start"),
    (f"{WARM} \"training.weight_filter=['scroe*']\"", "scroe*", "score"),
    (f"{WARM} network.width=4 --set \"training.weight_filter=['*']\"", "(16, 8)", "(16, 4)"),
    ("train decima --mlflow http://x", "loadmaster[mlflow]"),
]
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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_one_line_and_nothing_written(
    case: tuple[str, ...],
    faulty: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LOADMASTER_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.chdir(tmp_path)
    command, *words = case
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
