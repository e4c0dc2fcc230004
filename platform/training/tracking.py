"""Trackers of a run's metrics: CSV and TensorBoard, and MLflow on request."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from loadmaster.envs.errors import InputError
from loadmaster.platform.training.config import BaseConfig, flattened
from loadmaster.platform.training.run_folder import METRICS, RunFolder, csv_line


class Tracker(Protocol):
    def log(self, iteration: int, figures: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class CsvTracker:
    """Appends a line an iteration, so that a killed run loses nothing."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._names: list[str] = []  # columns; those of a resumed run are found by its first row

    def log(self, iteration: int, figures: Mapping[str, float]) -> None:
        """Append a row; unknown names become columns on the right, by rewriting the file."""
        if not set(figures) <= set(self._names):
            self._names = self._folder.write_rows([*self._folder.rows(), figures])
            return
        with (self._folder.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(csv_line(figures, self._names) + "\n")

    def close(self) -> None:
        pass


class TensorBoardTracker:
    def __init__(self, folder: Path, resumed_after: int | None) -> None:
        from tensorboardX import SummaryWriter

        # Hides what a killed run wrote after its checkpoint; it is written again.
        purge = None if resumed_after is None else resumed_after + 1
        # The default keeps two minutes in memory, which a killed run would lose.
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge, flush_secs=1)

    def log(self, iteration: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            if name != "iteration":
                self._writer.add_scalar(name, value, iteration)

    def close(self) -> None:
        self._writer.close()


class MlflowTracker:
    """Logs to an MLflow run of the same name; needs the extra `loadmaster[mlflow]`."""

    def __init__(
        self,
        uri: str,
        name: str,
        parameters: Mapping[str, Any],
        run_id: str | None = None,
        warn: Callable[[str], None] = print,
    ) -> None:
        """`run_id`: continue that run, whose parameters cannot change."""
        # By default MLflow retries an unreachable server for four minutes, in every iteration.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        self._client, self._warn, self._lost = mlflow_client(), warn, False
        try:
            self._client.set_tracking_uri(uri)
            self._client.set_experiment("loadmaster")
            self.run_id: str = self._client.start_run(run_id=run_id, run_name=name).info.run_id
            if run_id is None:
                self._client.log_params(dict(parameters))
        except Exception as fault:  # each transport has its own types
            reason = str(fault)[:200]
            raise InputError(f"--mlflow {uri!r} cannot be used: {reason}") from None

    def log(self, iteration: int, figures: Mapping[str, float]) -> None:
        """An unreachable server is reported once; training continues."""
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
            self._warn(f"MLflow failed, training continues without it: {fault}")


def mlflow_client() -> Any:
    try:
        import mlflow
    except ImportError:
        raise InputError(
            "--mlflow needs the MLflow client, which is not installed; "
            "expected: pip install 'loadmaster[mlflow]'"
        ) from None
    return mlflow


def trackers_for(
    folder: RunFolder,
    config: BaseConfig,
    resumed_after: int | None,
    mlflow: str | None,
    warn: Callable[[str], None],
) -> list[Tracker]:
    """CSV and TensorBoard, and MLflow if `mlflow` is its URI."""
    found: list[Tracker] = [CsvTracker(folder), TensorBoardTracker(folder.path, resumed_after)]
    if mlflow is not None:
        known = folder.manifest.get("mlflow", {})
        run_id = known.get("run") if known.get("uri") == mlflow else None
        parameters = flattened(config.model_dump(mode="json"))
        tracker = MlflowTracker(mlflow, folder.path.name, parameters, run_id, warn)
        folder.update_manifest(mlflow={"uri": mlflow, "run": tracker.run_id})
        found.append(tracker)
    return found
