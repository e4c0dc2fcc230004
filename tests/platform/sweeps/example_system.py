"""A system that trains in milliseconds: gradient descent on x^2."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from pydantic import PositiveInt, model_validator

from loadmaster.envs.errors import InputError
from loadmaster.envs.registry import System
from loadmaster.envs.settings import Settings
from loadmaster.platform.training.config import TrainingConfig
from tests.bundles import make_bundle


class Hill(Settings):
    start: float = 10.0
    pause_s: float = 0.0  # an iteration
    crash_at: int | None = None  # iteration in which the process exits, once
    folder: Path = Path()  # for the mark that it has
    forbidden: bool = False
    failure: Literal["none", "exit", "hang", "hang at once"] = "none"  # in the third iteration
    name: str = "gentle"
    gait: Literal["walk", "run"] = "run"
    speed: PositiveInt = 1

    @model_validator(mode="after")
    def _check(self) -> Hill:
        """Two settings that are valid alone and not together."""
        if self.gait == "walk" and self.speed > 1:
            raise ValueError("gait=walk needs speed=1; expected that, or gait=run")
        return self


class Shoes(Settings):
    size: int = 8


class ExampleTraining(TrainingConfig):
    environment: Hill = Hill()
    network: Shoes = Shoes()


class ExampleTrainer:
    """The interface of Trainer with one number as its state."""

    def __init__(self, recipe: SimpleNamespace, config: ExampleTraining) -> None:
        assert recipe is RECIPE
        if config.environment.forbidden:
            raise InputError("this hill is closed; expected another")
        if config.environment.failure == "hang at once":
            time.sleep(3600)
        self.config = config
        self.iteration = 0
        self.x = config.environment.start

    def step(self) -> dict[str, float]:
        time.sleep(self.config.environment.pause_s)
        self.iteration += 1
        if self.config.environment.crash_at == self.iteration:
            self._crash_once()
        if self.iteration == 3:
            self._fail()
        self.x -= 2 * self.config.training.learning_rate.last * self.x
        figures = {"iteration": float(self.iteration), "return_mean": -(self.x**2)}
        if self.iteration % self.config.validation.every == 0:
            figures["validation"] = abs(self.x) if abs(self.x) < 1e6 else float("nan")
        return figures

    def _crash_once(self) -> None:
        mark = self.config.environment.folder / "crashed"
        if not mark.exists():
            mark.touch()
            os._exit(1)

    def _fail(self) -> None:
        if self.config.environment.failure == "exit":
            os._exit(1)
        if self.config.environment.failure == "hang":
            time.sleep(3600)

    def save(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "x.json").write_text(json.dumps([self.iteration, self.x]))

    def save_policy(
        self, folder: Path, name: str, provenance: Mapping[str, Any], trained: Mapping[str, Any]
    ) -> None:
        """A bundle of an untrained Decima, since the example has no network."""
        make_bundle(folder, name, seed=self.config.seed, trained={**trained, "x": self.x})

    def restore(self, folder: Path) -> None:
        self.iteration, self.x = json.loads((folder / "x.json").read_text())

    def stop(self) -> None:
        pass


def check(config: ExampleTraining) -> None:
    if config.environment.name != "gentle":
        raise InputError(f"unknown hill {config.environment.name!r}; did you mean 'gentle'?")


RECIPE = SimpleNamespace(system="example", config_class=ExampleTraining, check=check)
TRAINER = f"{__name__}:ExampleTrainer"
EXAMPLE = System("example", "dag_scheduling", "Walks down a hill.", package=__name__)
