"""Start of a head: what is waited for, and when it is tried again."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.ray import head
from tests.platform.cli.one_line import Patch

FAILS = "print('{text}'); raise SystemExit(1)"
STARTS = """
import socket, time
print("Ray runtime started.", flush=True)
listener = socket.create_server(("127.0.0.1", {port}))
time.sleep(60)
"""


class Starts:
    """Runs a script in place of each `ray start`; the last one again and again."""

    def __init__(self, *scripts: str) -> None:
        self.scripts, self.processes = scripts, list[subprocess.Popen[bytes]]()

    def __call__(
        self, folder: Path, options: list[str], variables: Mapping[str, str]
    ) -> "subprocess.Popen[bytes]":
        script = self.scripts[min(len(self.processes), len(self.scripts) - 1)]
        (port,) = (each.split("=")[1] for each in options if each.startswith("--dashboard-port"))
        with (folder / head.LOG).open("wb") as log:
            command = [sys.executable, "-c", script.replace("{port}", port)]
            self.processes.append(subprocess.Popen(command, stdout=log))
        return self.processes[-1]

    def running(self) -> int:
        return sum(process.poll() is None for process in self.processes)


SLOW = FAILS.format(text=f"The current node {head.SLOW}.")


def test_slow_start_is_tried_again(monkeypatch: Patch, tmp_path: Path) -> None:
    starts = Starts(SLOW, SLOW, STARTS)
    monkeypatch.setattr(head, "_start", starts)
    with head.own_head(tmp_path, 1) as address:
        assert address.startswith("127.0.0.1:")
        assert (len(starts.processes), starts.running()) == (3, 1)
    assert starts.running() == 0


@pytest.mark.parametrize(
    ("script", "tries", "reason"),
    [(SLOW, head.TRIES, head.SLOW), (FAILS.format(text="no such option"), 1, "no such option")],
)
def test_head_that_does_not_start_is_reported(
    monkeypatch: Patch, tmp_path: Path, script: str, tries: int, reason: str
) -> None:
    starts = Starts(script)
    monkeypatch.setattr(head, "_start", starts)
    with (
        pytest.raises(InputError, match=f"Ray did not start: .*{reason}"),
        head.own_head(tmp_path, 1),
    ):
        pytest.fail("it has not started")
    assert (len(starts.processes), starts.running()) == (tries, 0)
