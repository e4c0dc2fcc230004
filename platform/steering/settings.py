"""Settings of `loadmaster steer`, from a YAML file and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, Field

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import Settings, build_settings, one_or_more
from loadmaster.platform.steering.core import Mode
from loadmaster.platform.steering.jobs import Cadence, Limits
from loadmaster.platform.steering.registry import EngineSpec
from loadmaster.serving.client.clients import DEFAULT_URL


class SteerSettings(Settings):
    """What is the same for every engine; `settings` are those of the engine."""

    mode: Mode = "watch"
    recommender: Annotated[tuple[str, ...], BeforeValidator(one_or_more)] = Field(
        default=("service",), description="The next one decides where the one before is silent."
    )
    url: str = Field(default=DEFAULT_URL, description="Address of the service.")
    token_file: Path | None = None
    tenant: str | None = Field(
        default=None, description="Of the service; default: one for each application."
    )
    every_s: float | None = Field(default=None, gt=0, description="Default: by engine.")
    metrics_port: int | None = Field(default=None, ge=0, le=65_535)
    limits: Limits = Limits()
    cadence: Cadence = Cadence()
    applications: Annotated[tuple[str, ...], BeforeValidator(one_or_more)] = ()
    settings: dict[str, Any] = Field(default={}, description="Of the engine.")

    def cadence_of(self, spec: EngineSpec) -> Cadence:
        """The cadence with the engine's own default of `pause_s`."""
        if spec.pause_s is None or "pause_s" in self.cadence.model_fields_set:
            return self.cadence
        return self.cadence.model_copy(update={"pause_s": spec.pause_s})


def read_settings(
    file: Path | None, given: Mapping[str, Any], engine: Mapping[str, Any]
) -> SteerSettings:
    """Settings of a file, under what was `given` otherwise, and of the `engine` alike."""
    tree: dict[str, Any] = {}
    if file is not None:
        try:
            content = yaml.safe_load(file.read_text())
        except OSError as fault:
            raise InputError(f"cannot read {file}: {fault.strerror}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as fault:
            line = " ".join(str(fault).split())
            raise InputError(f"{file} is not YAML: {line}") from None
        if not isinstance(content, dict):
            raise InputError(f"{file} has no settings; expected keys such as mode and settings")
        tree = content
    inner = tree.get("settings") or {}
    if not isinstance(inner, dict):
        raise InputError(f"{file}: settings is {inner!r}; expected keys and values of the engine")
    return build_settings(SteerSettings, {**tree, **given, "settings": {**inner, **engine}})
