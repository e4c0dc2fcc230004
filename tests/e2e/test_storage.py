"""`loadmaster train` with its run in a bucket: killed and resumed, read by URL, and without it."""

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from loadmaster.models.bundle import load_bundle
from loadmaster.models.storage import Location
from loadmaster.platform.cli.main import main
from loadmaster.platform.systems.bundle_ref import bundle_of_run
from loadmaster.platform.training.run_folder import RunFolder
from tests.e2e.test_train import Command, joined, rows_of, settings
from tests.object_store import ObjectStore
from tests.platform.cli.one_line import Captured, Cli
from tests.serving.live import free_port

pytestmark = pytest.mark.slow
LAST = 10  # iterations
ENDLESS = 100_000
WITHOUT_WORKERS = ["--workers", "0"]  # of the option given twice, the last one holds
CHANGED: dict[str, Any] = {"checkpoints__every": 3, "checkpoints__last": 2, "validation__every": 2}


def published(run: Location) -> dict[str, Any]:
    """The manifest of a run at a URL; {} while there is none."""
    found: dict[str, Any] = json.loads((run / "manifest.json").read(1 << 20) or b"{}")
    return found


def latest_checkpoint(run: Location) -> int:
    """The iteration of the latest published checkpoint; -1 if there is none."""
    names = [name for name in published(run).get("published", {}) if name.startswith("checkpoints")]
    return max((int(name.rpartition("-")[2]) for name in names), default=-1)


class Runs(NamedTuple):
    local: Path  # never interrupted
    remote: Location  # killed after `reached`, and resumed
    reached: int


@pytest.fixture(scope="module")
def runs(ray_session: None, s3: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The same training in a local folder, and in a bucket, where it is killed and resumed."""
    folder, remote = tmp_path_factory.mktemp("storage"), Location.of(f"{s3.bucket()}/runs/run")
    whole = [*settings(training__iterations=LAST, **CHANGED), "--output", "run", *joined()]
    uninterrupted = Command(*whole, cwd=folder)
    endless = settings(training__iterations=ENDLESS, **CHANGED)
    env = {**os.environ, "TMPDIR": str(folder)}  # where the killed one leaves its copy
    killed = Command(*endless, "--output", str(remote), *joined(), cwd=folder, env=env)
    try:
        killed.wait_until(lambda: latest_checkpoint(remote) >= 3)
    finally:
        killed.kill()
    assert killed.done().code == -signal.SIGKILL
    reached = latest_checkpoint(remote)
    assert published(remote)["status"] == "running"
    (remote / "checkpoints" / f"iteration-{reached + 3:06d}" / "state.pkl").write(b"half of it")
    more = ["--resume", str(remote), "--set", f"training.iterations={LAST}", *joined(), "--json"]
    resumed = Command(*more, cwd=folder).done()
    assert resumed.code == 0, resumed.err
    assert json.loads(resumed.out)["run"] == str(remote)
    assert json.loads(resumed.out)["curve"] == f"{remote}/curve.png"
    assert uninterrupted.done().code == 0
    return Runs(folder / "run", remote, reached)


@pytest.fixture(scope="module")
def finished(ray_session: None, s3: ObjectStore) -> Location:
    """A run in a bucket, trained in this process."""
    run = Location.of(f"{s3.bucket()}/runs/run")
    given = settings(training__iterations=LAST, **CHANGED)
    assert main(["train", *given, *WITHOUT_WORKERS, "--output", str(run)]) == 0
    assert published(run)["status"] == "finished"
    return run


@pytest.mark.long
def test_killed_run_resumes_from_its_url_as_if_uninterrupted(runs: Runs, tmp_path: Path) -> None:
    assert 3 <= runs.reached < LAST
    runs.remote.download(tmp_path, ["metrics.csv"])
    assert rows_of(tmp_path) == rows_of(runs.local)
    manifest = published(runs.remote)
    assert (manifest["status"], manifest["iterations"]) == ("finished", LAST)
    assert [each["iteration"] for each in manifest["resumed"]] == [runs.reached]
    for which in ("best", "last"):
        ours, other = (load_bundle(bundle_of_run(run, which)) for run in (runs.remote, runs.local))
        assert ours.trained["iterations"] == other.trained["iterations"]
        assert all(tensor.equal(other.weights[name]) for name, tensor in ours.weights.items())
    stored = runs.remote.files()
    assert {"config.yaml", "curve.png", "ray.log", "metrics.csv", "manifest.json"} <= set(stored)
    folders = {"/".join(name.split("/")[:2]) for name in stored if name.count("/") > 1}
    assert folders == set(manifest["published"].values())  # what the killed run left is gone


def test_policy_of_a_run_at_a_url_is_used_by_every_command(
    finished: Location, tmp_path: Path, capsys: Captured
) -> None:
    cli, bundle = Cli(capsys), f"{finished.parent}/policies/mine"
    exported = cli.json(f"export {finished} {bundle}")
    assert (exported["name"], exported["bundle"]) == ("mine", bundle)
    assert cli.error(f"export {finished} {bundle}").count(bundle) == 1
    settings = "--seeds 2 --set workload=toy --set jobs=3 --set executors=4"
    policies = f"--policy {bundle} --policy {finished} --output {tmp_path / 'results'}"
    found = cli.json(f"evaluate decima {policies} {settings}")["learned"]
    assert {each["folder"] for each in found.values()} == {bundle, str(finished)}
    cli(f"replay {bundle} --policy fair -o {tmp_path / 'replay.html'}")
    assert (tmp_path / "replay.html").stat().st_size > 10_000
    curve = cli.json(f"curve mine={finished} -o {tmp_path / 'curve.png'}")
    assert curve["runs"][0]["run"] == str(finished)


def test_bucket_that_vanishes_ends_the_run_with_one_line(
    ray_session: None,
    s3: ObjectStore,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = s3.bucket()
    run = Location.of(f"{bucket}/run")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def vanish() -> None:
        while latest_checkpoint(run) < 0:
            time.sleep(0.02)
        s3.delete(bucket)

    given = settings(training__iterations=ENDLESS, training__minutes=2, **CHANGED)
    with ThreadPoolExecutor(1) as thread:
        vanished = thread.submit(vanish)
        code = main(["train", *given, *WITHOUT_WORKERS, "--output", str(run)])
        vanished.result(timeout=60)
    err = capsys.readouterr().err
    assert code == 2
    assert "Traceback" not in err
    line = err.splitlines()[-1]
    assert line.startswith(f"error: cannot write {run}/")
    assert "NO_SUCH_BUCKET" in line
    (kept,) = tmp_path.glob("loadmaster-*/run")
    assert line.endswith(f"kept in {kept}")
    assert RunFolder.open(kept).latest_checkpoint().is_dir()  # --resume takes this folder


SWEEP = Path(__file__).parents[2] / "tune_configs" / "decima" / "asha.yaml"
COMMANDS = (  # that take a URL
    "train decima --workers 1 --output {url}",
    "train --resume {url}",
    "train decima --config {url}/best.yaml",
    f"tune {SWEEP} --output {{url}}",
    "tune --resume {url}",
    "tune --report {url}",
    "evaluate decima --policy {url}",
    "export {url} {url}-2",
    "replay --log {url}",
    "curve {url}",
    "serve --port {port} --bundle decima={url}",
    "serve --port {port} --set systems.decima.log.folder={url}",
)


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working and temporary folder; it stays empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield tmp_path
    assert list(tmp_path.iterdir()) == []


def test_missing_bucket_is_refused_at_the_start(
    s3: ObjectStore, empty_folder: Path, capsys: Captured
) -> None:
    began, cli = time.monotonic(), Cli(capsys)
    url, port = "s3://no-such-bucket/run", free_port()
    for line in COMMANDS:
        assert url in cli.error(line.format(url=url, port=port)), line
    for line in ("evaluate decima --output", "retrain decima --from x --output", "serve --folder"):
        assert "expected a local folder" in cli.error(f"{line} {url}")
    assert time.monotonic() - began < 60


def test_wrong_credentials_are_refused_at_the_start(
    s3: ObjectStore, empty_folder: Path, capsys: Captured
) -> None:
    run = Location.of(f"{s3.bucket()}/run")
    (run / "manifest.json").write(b"{}")
    cli, port = Cli(capsys), free_port()
    for line in COMMANDS:
        with s3.credentials_checked():
            error = cli.error(line.format(url=run, port=port))
        assert str(run) in error, line
        assert "AWS_ACCESS_KEY_ID" in error, line
    assert run.parent.files() == {"run/manifest.json": 2}
