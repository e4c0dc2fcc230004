"""A folder of one request that takes long: the same request continues where it was stopped."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.models.files import atomic_text_file
from loadmaster.platform.training.run_folder import MANIFEST, RunFolder

REQUEST = "request.json"


class RequestFolder:
    """request.json, a training run in run/, and what a subclass adds."""

    kind = "request"  # in messages
    command = "loadmaster"

    def __init__(self, path: Path) -> None:
        self.path, self.run = path, path / "run"

    def open(self, request: Mapping[str, Any]) -> None:
        """Create it, or check that it is of the same request."""
        known = self.read_json(REQUEST)
        if known is None:
            if self.path.exists() and any(self.path.iterdir()):
                raise InputError(
                    f"--output {str(self.path)!r} holds something else; expected a new folder, or "
                    f"that of the same {self.kind}"
                )
            self.path.mkdir(parents=True, exist_ok=True)
            self.write_json(REQUEST, request)
        elif known != (wanted := json.loads(json.dumps(request))):
            both = known.keys() | wanted.keys()
            changed = sorted(key for key in both if known.get(key) != wanted.get(key))
            raise InputError(
                f"--output {str(self.path)!r} is another {self.kind}, with other "
                f"{', '.join(changed)}; expected the same request, or a new folder"
            )

    @property
    def is_trained(self) -> bool:
        known = (self.run / MANIFEST).is_file()
        return known and RunFolder(self.run).manifest.get("status") == "finished"

    @property
    def can_resume(self) -> bool:
        """Whether the run has a checkpoint."""
        return self.run.exists() and bool(RunFolder(self.run).checkpoints())

    def remove_checkpoints(self) -> None:
        """Remove what only a resumed run needs, most of the folder's size."""
        for name in ("checkpoints", "replay"):
            shutil.rmtree(self.run / name, ignore_errors=True)

    def read_json(self, name: str) -> dict[str, Any] | None:
        """A record of the folder; None if there is none."""
        file = self.path / name
        if not file.is_file():
            return None
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise InputError(f"{file} is damaged; expected JSON that `{self.command}` wrote")
        return found

    def write_json(self, name: str, record: Mapping[str, Any]) -> None:
        with atomic_text_file(self.path / name) as file:
            file.write(json.dumps(record, indent=2) + "\n")
