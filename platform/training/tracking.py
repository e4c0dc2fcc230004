"""Where a run's figures go, iteration by iteration: CSV and TensorBoard always, MLflow if asked."""

from __future__ import annotations

from collections.abc import Mapping
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
    def __init__(self, folder: Path, after: int) -> None:
        from tensorboardX import SummaryWriter

        # What a killed run wrote past its checkpoint is hidden: it will be written anew.
        purge = after + 1 if after else None
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)

    def log(self, iteration: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            if name != "iteration":
                self._writer.add_scalar(name, value, iteration)

    def close(self) -> None:
        self._writer.close()


class MlflowTracker:
    """An MLflow run of the same name; the extra `loadmaster[mlflow]` brings the client."""

    def __init__(self, uri: str, name: str, parameters: Mapping[str, Any]) -> None:
        try:
            import mlflow
        except ImportError:
            raise InputError(
                "--mlflow needs the MLflow client, which is not installed; "
                "expected: pip install 'loadmaster[mlflow]'"
            ) from None
        self._client = mlflow
        mlflow.set_tracking_uri(uri)
        mlflow.set_experiment("loadmaster")
        mlflow.start_run(run_name=name)
        mlflow.log_params(dict(parameters))

    def log(self, iteration: int, figures: Mapping[str, float]) -> None:
        self._client.log_metrics(dict(figures), step=iteration)

    def close(self) -> None:
        self._client.end_run()


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
    folder: RunFolder, config: TrainingConfig, after: int, mlflow: str | None
) -> list[Tracker]:
    """CSV and TensorBoard, and MLflow where its address is given; `after` iterations are done."""
    found: list[Tracker] = [CsvTracker(folder.path), TensorBoardTracker(folder.path, after)]
    if mlflow is not None:
        parameters = flattened(config.model_dump(mode="json"))
        found.append(MlflowTracker(mlflow, folder.path.name, parameters))
    return found
