"""Slurm's commands: `squeue` and `sinfo` as JSON, changes of jobs by `scontrol`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.core import RefusedError, SilentError

# Texts of Slurm's commands where the controller does not answer, of 22.05 and later.
_UNREACHABLE = (
    "unable to contact slurm",
    "connection refused",
    "socket timed out",
    "munge",
    "zero",
)


class SlurmCommands:
    """Runs Slurm's commands within `timeout_s`; `environment` replaces that of the process."""

    def __init__(self, timeout_s: float, environment: Mapping[str, str] | None = None) -> None:
        self._timeout_s, self._environment = timeout_s, environment

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs that the controller remembers, those that have ended included."""
        return self._listed("jobs", "squeue", "--json", "--states=all")

    def nodes(self) -> list[dict[str, Any]]:
        return self._listed("nodes", "sinfo", "--json")

    def update(self, jobs: Sequence[int], **fields: str) -> None:
        """Change fields of jobs. Raises RefusedError, also where some of them have ended."""
        ids = ",".join(str(one) for one in jobs)
        self._change("update", f"jobid={ids}", *(f"{name}={text}" for name, text in fields.items()))

    def requeue(self, job: int) -> None:
        """Stop a job, which waits again after it."""
        self._change("requeue", str(job))

    def _change(self, *words: str) -> None:
        code, _, error = self._run("scontrol", *words)
        if code:
            raise RefusedError(error or f"scontrol {words[0]} returned {code}")

    def _listed(self, what: str, *words: str) -> list[dict[str, Any]]:
        code, text, error = self._run(*words)
        found: Any = None
        try:
            document = json.loads(text)
            # A query of a controller that is down exits with 0 and lists nothing but errors.
            faults = document.get("errors") or ()
            error = error or "; ".join(str(one.get("error") or one) for one in faults)
            found = None if code or faults else document.get(what)
        except (ValueError, AttributeError):
            error = error or "no JSON"
        if not isinstance(found, list):
            raise SilentError("engine", f"{words[0]}: {error or f'no {what}'}")
        return found

    def _run(self, *words: str) -> tuple[int, str, str]:
        try:
            done = subprocess.run(
                words,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._timeout_s,
                env=self._environment,
                check=False,
            )
        except FileNotFoundError:
            raise InputError(
                f"the command {words[0]} is not found; expected Slurm's commands on PATH"
            ) from None
        except subprocess.TimeoutExpired:
            fault = f"{words[0]} did not end within {self._timeout_s:g} s"
            raise SilentError("engine", fault) from None
        error = " ".join(done.stderr.split())
        if done.returncode and any(text in error.lower() for text in _UNREACHABLE):
            raise SilentError("engine", f"{words[0]}: {error}")
        return done.returncode, done.stdout, error
