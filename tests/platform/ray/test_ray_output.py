"""What Ray prints ends in a file, whichever way it prints; what we say does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own: pytest has turned the streams of this one already."""
    header = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from loadmaster.platform.ray.cleanup import ray_output_in\n"
    )
    command = [sys.executable, "-c", header + code]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def test_both_streams_end_in_the_file(tmp_path: Path) -> None:
    done = run(
        """
print("before")
with ray_output_in(Path("ray.log")) as ours:
    print("by Python")
    print("in logs", file=sys.stderr)
    os.write(1, b"natively\\n")
    os.write(2, b"natively, an error\\n")
    os.system("echo by a child")
    print("to the user", file=ours, flush=True)
print("after")
""",
        tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "before\nafter\n", "to the user\n")
    logged = (tmp_path / "ray.log").read_text().splitlines()
    assert sorted(logged) == [
        "by Python",
        "by a child",
        "in logs",
        "natively",
        "natively, an error",
    ]


def test_a_fault_gives_the_streams_back(tmp_path: Path) -> None:
    (tmp_path / "ray.log").write_text("of a run that is resumed\n")
    done = run(
        """
with ray_output_in(Path("ray.log")):
    os.write(2, b"natively\\n")
    raise ValueError("ours")
""",
        tmp_path,
    )
    assert done.stderr.endswith("ValueError: ours\n")
    assert (tmp_path / "ray.log").read_text() == "of a run that is resumed\nnatively\n"


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    done = run(
        """
try:
    with ray_output_in(Path("none/ray.log")):
        print("never")
except FileNotFoundError:
    os.write(1, b"still here\\n")
""",
        tmp_path,
    )
    assert (done.stdout, done.stderr) == ("still here\n", "")
