"""Where a run's figures go, iteration by iteration: CSV and TensorBoard always, MLflow if asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from loadmaster.envs.errors import InputError
from loadmaster.platform.training.config import TrainingConfig
from loadmaster.platform.training.run_folder import METRICS, RunFolder, cell


class Tracker(Protocol):
    def log(self, iteration: int, figures: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class CsvTracker:
    """Appends a line an iteration, so that a killed run keeps all it had."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / METRICS
        self._names: list[str] = []
        if self._path.is_file():
            with self._path.open(encoding="utf-8") as file:
                self._names = [name for name in file.readline().strip().split(",") if name]

    def log(self, iteration: int, figures: Mapping[str, float]) -> None:
        """The first row with figures of learning fixes the columns, `validation` included."""
        if not set(figures) <= set(self._names):
            self._widen(figures)
        line = ",".join(cell(figures.get(name)) for name in self._names)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _widen(self, figures: Mapping[str, float]) -> None:
        """New columns to the right; the rows so far are shorter, which every CSV reader takes."""
        added = [name for name in figures if name not in self._names]
        lines: list[str] = []
        if self._path.is_file():
            lines = self._path.read_text(encoding="utf-8").splitlines()[1:]
        self._names += added
        rows = [line + "," * (len(self._names) - 1 - line.count(",")) for line in lines if line]
        scratch = self._path.with_suffix(".partial")
        scratch.write_text("\n".join([",".join(self._names), *rows]) + "\n", encoding="utf-8")
        scratch.replace(self._path)

    def close(self) -> None:
        pass


class TensorBoardTracker:
    def __init__(self, folder: Path, resumed_after: int | None) -> None:
        from tensorboardX import SummaryWriter

        # What a killed run wrote past its checkpoint is hidden: it will be written anew.
        purge = None if resumed_after is None else resumed_after + 1
        # By default it keeps two minutes in memory, which a killed run would lose.
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge, flush_secs=1)

    def log(self, iteration: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            if name != "iteration":
                self._writer.add_scalar(name, value, iteration)

    def close(self) -> None:
        self._writer.close()


class MlflowTracker:
    """An MLflow run of the same name; the extra `loadmaster[mlflow]` brings the client."""

    def __init__(
        self,
        uri: str,
        name: str,
        parameters: Mapping[str, Any],
        run_id: str | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        """`run_id`: go on with that run; its parameters were logged and cannot change."""
        # MLflow would try a server that is gone for four minutes, in every iteration.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        self._client, self._say, self._lost = mlflow_client(), say, False
        try:
            self._client.set_tracking_uri(uri)
            self._client.set_experiment("loadmaster")
            self.run_id: str = self._client.start_run(run_id=run_id, run_name=name).info.run_id
            if run_id is None:
                self._client.log_params(dict(parameters))
        except Exception as fault:  # MLflow has kinds of its own for every transport
            reason = str(fault)[:200]
            raise InputError(f"--mlflow {uri!r} does not take the run: {reason}") from None

    def log(self, iteration: int, figures: Mapping[str, float]) -> None:
        """A server that is gone is no reason to stop learning."""
        if not self._lost:
            self._try(lambda: self._client.log_metrics(dict(figures), step=iteration))

    def close(self) -> None:
        if not self._lost:
            self._try(self._client.end_run)

    def _try(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except Exception as fault:
            self._lost = True
            self._say(f"MLflow no longer answers, the run goes on without it: {fault}")


def mlflow_client() -> Any:
    try:
        import mlflow
    except ImportError:
        raise InputError(
            "--mlflow needs the MLflow client, which is not installed; "
            "expected: pip install 'loadmaster[mlflow]'"
        ) from None
    return mlflow


def flattened(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def trackers_for(
    folder: RunFolder,
    config: TrainingConfig,
    resumed_after: int | None,
    mlflow: str | None,
    say: Callable[[str], None],
) -> list[Tracker]:
    """CSV and TensorBoard, and MLflow where its address is given."""
    found: list[Tracker] = [
        CsvTracker(folder.path),
        TensorBoardTracker(folder.path, resumed_after),
    ]
    if mlflow is not None:
        manifest = folder.manifest
        known = manifest.get("mlflow", {})
        run_id = known.get("run") if known.get("uri") == mlflow else None
        parameters = flattened(config.model_dump(mode="json"))
        tracker = MlflowTracker(mlflow, folder.path.name, parameters, run_id, say)
        folder.write_manifest({**manifest, "mlflow": {"uri": mlflow, "run": tracker.run_id}})
        found.append(tracker)
    return found


# What may change when a run goes on.


# Its network and its task are what a run is. With other sequences to validate on, its curve would
# break in two and its best policy could no longer be told.
MAY_CHANGE = ("training.", "rollouts.", "checkpoints.", "resources.", "validation.every")
START, TAKE = "training.start", "training.take"  # how it began cannot change


def check_same_run(before: TrainingConfig, after: TrainingConfig, run: Path) -> None:
    """An InputError for a setting that makes it another run."""
    old, new = flattened(before.model_dump(mode="json")), flattened(after.model_dump(mode="json"))
    for name in new | old:
        if old.get(name) == new.get(name):
            continue
        if name in (START, TAKE) or not name.startswith(MAY_CHANGE):
            raise InputError(
                f"setting {name} is {old.get(name)!r} in {str(run)!r} and cannot become "
                f"{new.get(name)!r}; expected a new run, which may begin with this one's policy: "
                f"--set {START}={run}"
            )
